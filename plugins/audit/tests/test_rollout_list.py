"""The rollouts of a run: filters, pages, and ids that the other commands take."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.runs import RAISED, RUN, make_run, plugins
from core.store.sqlite.test_rows_of_others import with_spoiled_spans

from agentlightning.store import SQLiteStore
from agl_audit.rollout_list import BadFilter, RolloutPage, list_rollouts, reward_filter
from agl_audit.run import open_run
from agl_audit.targets import find_target


async def listed(folder: Path, **asked: object) -> RolloutPage:
    async with open_run(str(folder), plugins=plugins()) as run:
        return await list_rollouts(run, **asked)  # type: ignore[arg-type]


def names(page: RolloutPage) -> list[str]:
    return [line.rollout for line in page.lines]


async def test_every_rollout_is_a_line_with_ids_that_are_found(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    page = await listed(folder)
    assert len(page.lines) == 9 and page.after is None
    first = page.lines[0]
    assert (first.rollout, first.task, first.batch, first.status) == ("ro-0-0", "t1", "train/0", "succeeded")
    assert (first.attempts, len(first.calls), first.reason) == (1, 2, None)
    store = SQLiteStore(folder / "store.sqlite")
    try:
        for line in page.lines:
            for name in (line.rollout, line.attempt, *(call.call for call in line.calls)):
                target = await find_target(store, name or "")
                assert target is not None and target.rollout.rollout_id == line.rollout
    finally:
        await store.close()


async def test_filters(tmp_path: Path) -> None:
    folder = await make_run(tmp_path, rewards={0: [0.0, 1.0], 1: [None, 0.25]})
    assert names(await listed(folder, failed=True)) == ["ro-1-0"]
    (failed,) = (await listed(folder, failed=True)).lines
    assert failed.reward is None and failed.reason == "agent-raised: RuntimeError: the tool server is gone"
    assert failed.raised_at == RAISED
    assert names(await listed(folder, reward="<0.5")) == ["ro-0-0", "ro-1-1"]
    assert names(await listed(folder, reward="none")) == ["ro-1-0"]
    assert names(await listed(folder, reward="1", mode="train")) == ["ro-0-1"]
    assert names(await listed(folder, mode="val")) == ["ro-eval"]
    assert names(await listed(folder, step=1)) == ["ro-1-0", "ro-1-1"]
    assert names(await listed(folder, task="other")) == []


async def test_pages_hold_every_rollout_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_audit.rollout_list._PAGE", 2)
    folder = await make_run(tmp_path)
    whole, after, seen = names(await listed(folder)), None, list[str]()
    while True:
        page = await listed(folder, limit=4, after=after)
        seen += names(page)
        if (after := page.after) is None:
            break
    assert seen == whole and len(whole) == 9
    assert (await listed(folder, limit=9)).after is None


async def test_a_rollout_that_waits_has_neither_attempt_nor_calls(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = SQLiteStore(folder / "store.sqlite")
    await store.enqueue_rollout({"q": 1}, run_id=RUN)
    await store.close()
    line = (await listed(folder)).lines[-1]
    assert (line.status, line.attempts, line.attempt, line.calls, line.reward) == (
        "queuing",
        0,
        None,
        [],
        None,
    )


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("<0.5", [0.0]), (">=1", [1.0]), ("=0", [0.0]), ("0", [0.0]), ("!=0", [0.5, 1.0]), ("none", [None]),
        (" > 0.25 ", [0.5, 1.0]), ("<= 5e-1", [0.0, 0.5]), (None, [None, 0.0, 0.5, 1.0]),
    ],
)  # fmt: skip
def test_rewards_are_compared(text: str | None, passes: list[float | None]) -> None:
    assert [value for value in (None, 0.0, 0.5, 1.0) if reward_filter(text)(value)] == passes


@pytest.mark.parametrize("text", ["", "<", "low", "=>1", "<none"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(BadFilter, match=r"write e\.g\. 1, '<0\.5'"):
        reward_filter(text)


async def test_spans_of_the_wrong_shape_end_no_list(tmp_path: Path) -> None:
    rollout_id = await with_spoiled_spans(tmp_path / "store.sqlite")
    async with open_run("r", str(tmp_path / "store.sqlite")) as run:
        (line,) = (await list_rollouts(run)).lines
    assert (line.rollout, line.reward) == (rollout_id, 0.25)
