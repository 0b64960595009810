"""The tamper drill's own pieces."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from contract.runs import make_run, plugins
from drills.edited import attempt, newest
from drills.edits import EDITS, Expected, says
from marks import sampled

from agentlightning.trackers.files import FilesTracker
from agentlightning.types import Evaluation
from agl_audit.run import open_run
from agl_audit.verification.differences import make_difference
from agl_audit.verification.verify import verify


def test_the_newest_finished_run_is_taken(tmp_path: Path):
    with pytest.raises(SystemExit, match="run `make demo` first"):
        newest(tmp_path)
    for age, name in enumerate(("old", "new", "unfinished")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "store.sqlite").touch()
        if name != "unfinished":
            (folder / "summary.json").touch()
            os.utime(folder / "summary.json", (age, age))
    assert newest(tmp_path).name == "new"
    (tmp_path / "old").rename(tmp_path / "20260102-030405-calc_x-s1")
    assert newest(tmp_path).name == "20260102-030405-calc_x-s1"


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """A small run, with the files that a tracker writes."""
    folder = await make_run(tmp_path / "runs")
    async with open_run(str(folder), plugins=plugins()) as opened:
        info, tracker = opened.info, FilesTracker(folder)
        tracker.start({k: v for k, v in info.items() if k not in ("summary", "evaluations")})
        for report in await opened.store.query_steps(opened.run_id):
            tracker.step(report)
        for entry in info["evaluations"].values():
            tracker.evaluated(msgspec.convert(entry["evaluation"], Evaluation))
        tracker.finish(info["summary"])
    return folder


async def test_the_small_run_verifies(run: Path) -> None:
    async with open_run(str(run), plugins=plugins()) as opened:
        result = await verify(opened)
    assert result.equal, [d.text for d in result.differences]


@pytest.mark.parametrize("name", sampled(EDITS, *range(0, len(EDITS), 4)))
def test_an_edit_is_named_and_nothing_else(run: Path, name: str) -> None:
    """Those that a run of two steps with one evaluation, and no checkpoint, has something for."""
    found = attempt(run, 1, name)
    assert "left_out" in found or found["named_right"], found


def test_most_edits_find_something_in_the_small_run(run: Path) -> None:
    left_out = [name for name in EDITS if "left_out" in attempt(run, 2, name)]
    assert len(left_out) < len(EDITS) / 2, left_out


def test_a_difference_about_something_else_is_not_what_was_expected() -> None:
    expected = Expected(("reward",), rollout="ro-1", text="was 1.0")
    right = make_difference("reward", "reward was 1.0", step=0, rollout="ro-1", then=1.0, now=0.0)
    assert says(right, expected)
    for other in (
        make_difference("reward", "reward was 1.0", step=0, rollout="ro-2", then=1.0, now=0.0),
        make_difference("call", "reward was 1.0", step=0, rollout="ro-1", then=1.0, now=0.0),
        make_difference("reward", "reward was 0.5", step=0, rollout="ro-1", then=1.0, now=0.0),
    ):
        assert not says(other, expected)
