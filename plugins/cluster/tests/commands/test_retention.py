"""``agl store --keep-runs``: finished runs go while the store serves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from agentlightning.store import SQLiteStore
from agentlightning.types import RolloutStatus

AGL = [sys.executable, "-c", "from _agl_main import main; main()"]


async def test_old_runs_are_deleted_while_the_store_serves(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    store = SQLiteStore(path)
    for i in range(3):
        await store.add_run(f"r{i}", {})
        made = await store.enqueue_rollout(i, run_id=f"r{i}")
        if i < 2:
            await store.update_rollout(made.rollout_id, RolloutStatus.CANCELLED)
    await store.close()
    served = subprocess.Popen(
        [*AGL, "store", str(path), "--port", "0", "--keep-runs", "1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        assert "agl store on http" in served.stdout.readline()
        assert served.stdout.readline() == "2 rollouts, 2 runs deleted\n"
        served.send_signal(signal.SIGTERM)
        assert served.wait(300) == 0
    finally:
        served.kill()
        served.communicate()
    store = SQLiteStore(path)
    assert [run["run_id"] for run in await store.query_runs()] == ["r2"]
    await store.close()
