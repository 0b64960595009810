"""The drill's own accounts; and, slowly, the drill with one victim."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from drills import verl
from drills.verl import RUN, checkpointed, children, counts, on_file, wait

from agentlightning.store import SQLiteStore
from agentlightning.types import Rollout, RolloutFingerprint, StepReport


def place(folder: Path, step: int, whole: bool) -> None:
    at = folder / RUN / "checkpoints" / f"global_step_{step}"
    at.mkdir(parents=True)
    if whole:
        (at / "job.json").write_text("{}")


def test_the_last_whole_checkpoint_is_found(tmp_path: Path) -> None:
    assert (checkpointed(tmp_path), on_file(tmp_path)) == (0, 0)
    for step, whole in [(2, True), (10, True), (11, False)]:
        place(tmp_path, step, whole)
    (tmp_path / RUN / "metrics.jsonl").write_text("{}\n{}\n")
    assert (checkpointed(tmp_path), on_file(tmp_path)) == (10, 2)


def test_children_are_found_and_a_wait_that_is_in_vain_ends() -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as one:
        assert one.pid in children(verl.os.getpid())
        wait("its program", lambda: "sys.stdin.read" in verl.command_line(one.pid), 60.0)
        with pytest.raises(SystemExit, match="nothing: not within 0 s"):
            wait("nothing", lambda: False, 0.0)
    assert wait("all", lambda: True, 0.0) < 60


@pytest.mark.parametrize(("steps", "begun", "fingerprinted", "wanted"), [
    ([0, 1, 2], [1], ["a", "b"], {}),
    ([0, 2], [1], ["a", "b"], {"lost": 1}),
    ([0, 1, 2], [0], ["a", "b"], {"begun_elsewhere": 1}),
    ([0, 1, 2], [1], ["a", "a"], {"doubled": 1}),
])  # fmt: skip
async def test_what_is_wrong_is_counted(
    steps: list[int], begun: list[int], fingerprinted: list[str], wanted: dict[str, int], tmp_path: Path
) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    await store.add_run(RUN, {"resumed": [{"first_step": n} for n in begun]})
    await store.enqueue_many_rollouts([Rollout(rollout_id=name, run_id=RUN, input=1) for name in "ab"])
    for number, step in enumerate(steps):
        report = StepReport(run_id=RUN, step=step, policy="policy", policy_version=step + 1)
        fingerprint = (
            [RolloutFingerprint(run_id=RUN, step=step, rollout_id=fingerprinted[number])]
            if number < len(fingerprinted)
            else []
        )
        await store.add_step(report, fingerprint)
    told = await counts(store, [1], steps=3)
    await store.close()
    assert told.pop("lives") == 2
    assert {name: n for name, n in told.items() if n} == wanted


@pytest.mark.plugins
@pytest.mark.nightly
def test_a_run_survives_the_death_of_its_child() -> None:
    script = Path(verl.__file__)
    done = subprocess.run(
        [sys.executable, str(script), "--victims", "child", "--store-kills", "0"], stdout=subprocess.PIPE
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, told
    assert told["kills"] == 1 and told["lives"] == 2
