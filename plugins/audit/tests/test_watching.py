"""Looks at runs that are written meanwhile: choice, rates, what is read again, what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.runs import RUN, make_run, plugins

from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Call, StepReport
from agl_audit import watching
from agl_audit.locations import NoSuchRun
from agl_audit.run_list import RunSummary, list_runs
from agl_audit.watching import Watcher


class Ticks:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watcher(where: Path, ticks: Ticks) -> Watcher:
    return Watcher(str(where), plugins(), clock=lambda: 2000.0, ticks=ticks)


async def test_a_finished_run(tmp_path: Path) -> None:
    await make_run(tmp_path)
    found = await watcher(tmp_path, Ticks()).look()
    assert [line.run for line in found.runs] == [RUN] and found.selected == RUN and found.problem is None
    detail = found.detail
    assert detail is not None and detail.rewards == [0.5, pytest.approx(1 / 3)]
    assert detail.rollouts == {"succeeded": 8, "failed": 1} and detail.calls > 0
    assert detail.calls_per_second is None and len(detail.failures) == 1
    assert detail.failures[0].reason.startswith("agent-raised")


async def test_rates_and_steps_of_a_run_that_goes_on(tmp_path: Path) -> None:
    folder, ticks = tmp_path / "one", Ticks()
    folder.mkdir()
    store = SQLiteStore(folder / "store.sqlite", clock=lambda: 1990.0)
    await store.add_run("one", {"run_id": "one", "steps": 3, "about": {"agent": "a"}})
    looks = watcher(folder, ticks)
    first = await looks.look()
    assert first.runs[0].status == "running" and first.detail is not None and first.detail.rewards == []
    begun = await store.start_rollout({"q": 1}, worker_id="w-1", run_id="one")
    ids = {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt.attempt_id}
    calls = [
        Call(
            **ids, call_id=f"c{n}", prompt_ids=[1], response_ids=[2, 3], completion_tokens=2, prompt_tokens=1
        )
        for n in range(6)
    ]
    await store.add_calls(calls)
    await store.heartbeat("w-1", [begun.attempt.attempt_id])
    await store.add_step(
        StepReport(
            run_id="one",
            step=0,
            policy="p",
            policy_version=1,
            metrics={"reward_mean": 0.25, "failed/timeout": 2},
        )
    )
    ticks.now += 2.0
    second = await looks.look()
    detail = second.detail
    assert detail is not None and (second.runs[0].steps, detail.rewards) == (1, [0.25])
    assert (detail.calls_per_second, detail.tokens_per_second) == (3.0, 6.0)
    assert detail.failed == {"timeout": 2} and sum(detail.rollouts.values()) == 1
    assert [(one.worker, one.silent_seconds) for one in second.workers] == [("w-1", 10.0)]
    await store.update_attempt(**ids, status=AttemptStatus.FAILED, reason="timeout: \x1b[31mlong\nand red")
    third = await looks.look()
    assert third.detail is not None
    assert [one.reason for one in third.detail.failures] == ["timeout: [31mlong and red"]
    await store.close()


async def test_a_store_in_which_nothing_runs_is_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await make_run(tmp_path)
    reads: list[object] = []

    async def counted(places: list[object], plugins: object) -> list[RunSummary]:
        reads.extend(places)
        return await list_runs(places, plugins)  # type: ignore[arg-type]

    monkeypatch.setattr(watching, "list_runs", counted)
    looks = watcher(tmp_path, Ticks())
    first = await looks.look()
    assert (await looks.look()).runs == first.runs and len(reads) == 1
    store = SQLiteStore(folder / "store.sqlite")
    await store.count("late", "write")
    await store.close()
    again = await looks.look()
    assert len(reads) == 2 and again.counts["late"] == {"write": 1}


async def test_an_unreadable_store_hides_no_other(tmp_path: Path) -> None:
    await make_run(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "store.sqlite").write_bytes(b"this is no database, and it is long enough" * 40)
    looks = watcher(tmp_path, Ticks())
    found = await looks.look()
    assert {line.status for line in found.runs} == {"finished", "unreadable"} and found.selected == RUN
    chosen = await looks.look("broken")
    assert chosen.detail is None and chosen.problem


async def test_a_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun):
        await watcher(tmp_path / "nowhere", Ticks()).look()
    found = await watcher(tmp_path, Ticks()).look()
    assert found.runs == [] and found.selected is None and found.detail is None


async def test_the_selected_run_is_looked_at(tmp_path: Path) -> None:
    await make_run(tmp_path)
    await make_run(tmp_path, name="20250101-000000-other-s1")
    found = await watcher(tmp_path, Ticks()).look("20250101-000000-other-s1")
    assert found.selected == "20250101-000000-other-s1" and len(found.runs) == 2
    assert (await watcher(tmp_path, Ticks()).look("gone")).detail is None
