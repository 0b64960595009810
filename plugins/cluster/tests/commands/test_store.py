"""``agl store`` serves until it is told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from typer.testing import CliRunner

from agentlightning import cli

AGL = [sys.executable, "-c", "from _agl_main import main; main()"]


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


async def test_store_serves_until_sigterm(tmp_path: Path) -> None:
    from agl_cluster.store.client import StoreClient

    process = subprocess.Popen(
        [*AGL, "store", str(tmp_path / "s.sqlite"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = _line(process.stdout).split()[-1]
        client = StoreClient(url)
        rollout = await client.enqueue_rollout({"q": 1})
        assert (await client.get_rollout_by_id(rollout.rollout_id)).input == {"q": 1}
        await client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.communicate()


def test_help_lists_the_command() -> None:
    assert " store " in CliRunner().invoke(cli.app(), ["--help"]).output
