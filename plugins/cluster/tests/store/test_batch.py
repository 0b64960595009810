"""Batches: one write, one request id, an outcome for each call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from contract.store import call, span

from agentlightning.store.base import AttemptEnded, Conflict, NotFound, StoreError
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptedRollout, AttemptStatus


def ids(lease: AttemptedRollout) -> dict[str, Any]:
    return {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}


async def two_leases(store: SQLiteStore) -> tuple[AttemptedRollout, AttemptedRollout]:
    """One that runs, one that has ended."""
    alive, ended = await store.start_rollout("alive"), await store.start_rollout("ended")
    await store.update_attempt(**ids(ended), status=AttemptStatus.FAILED)
    return alive, ended


async def test_sent_again_it_is_answered_the_same_and_not_done_again(sqlite: SQLiteStore) -> None:
    alive, ended = await two_leases(sqlite)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("count", {"kind": "k", "reason": "r"}),
        ("enqueue_rollout", {"input": 1}),
        ("dequeue_rollout", {"worker_id": "w"}),
        ("add_span", {"span": span(ended)}),
        ("get_rollout_by_id", {"rollout_id": "ro-missing"}),
        ("add_calls", {"calls": [call(alive)]}),
    ]
    first = await sqlite.batch(calls, request_id="b")
    second = await sqlite.batch(calls, request_id="b")
    assert first[:3] == second[:3] and first[2].rollout.rollout_id == first[1].rollout_id
    for found in (first, second):
        assert isinstance(found[3], AttemptEnded) and isinstance(found[4], NotFound) and found[5] is None
    assert await sqlite.counts() == {"k": {"r": 1}, "refused": {"spans-after-failed": 1}}
    rollouts = await sqlite.query_rollouts()
    calls_of_each = [await sqlite.query_calls(rollout.rollout_id, None) for rollout in rollouts]
    assert sum(map(len, calls_of_each)) == 1 and len(rollouts) == 3
    with pytest.raises(Conflict, match="already used for batch"):
        await sqlite.enqueue_rollout(2, request_id="b")


async def test_a_call_that_fails_half_way_is_undone_alone(sqlite: SQLiteStore) -> None:
    alive, ended = await two_leases(sqlite)
    before = sqlite.writer.commits
    beside, found = await asyncio.gather(
        sqlite.add_span(span(alive)),
        sqlite.batch(
            [
                ("add_span", {"span": span(alive)}),
                ("add_many_spans", {"spans": [span(alive), span(ended)]}),
                ("add_span", {"span": span(alive, "last")}),
                ("enqueue_rollout", {"input": 1}),
            ],
            request_id="b",
        ),
    )
    assert sqlite.writer.commits <= before + 2
    assert isinstance(found[1], AttemptEnded)
    assert (beside.sequence_id, found[0].sequence_id, found[2].sequence_id) == (1, 2, 3)
    assert [s.sequence_id for s in await sqlite.spans(alive.rollout.rollout_id)] == [1, 2, 3]
    assert await sqlite.spans(ended.rollout.rollout_id) == []
    assert (await sqlite.counts())["refused"] == {"spans-after-failed": 1}


async def test_it_is_run_again_when_another_write_of_the_turn_fails_half_way(sqlite: SQLiteStore) -> None:
    def half() -> None:
        sqlite.db.connection.execute("DELETE FROM rollouts")
        raise KeyError("half way")

    found, broken, more = await asyncio.gather(
        sqlite.batch([("enqueue_rollout", {"input": 1}), ("dequeue_rollout", {})]),
        sqlite.writer.write(half),
        sqlite.batch([("enqueue_rollout", {"input": 2})], request_id="c"),
        return_exceptions=True,
    )
    assert isinstance(broken, KeyError) and isinstance(found, list) and isinstance(more, list)
    assert [r.rollout_id for r in await sqlite.query_rollouts()] == [found[0].rollout_id, more[0].rollout_id]
    (attempt,) = await sqlite.query_attempts(found[0].rollout_id)
    assert attempt == found[1].attempt  # the run that counted


@pytest.mark.slow
async def test_a_full_disk_fails_all_of_it(sqlite: SQLiteStore) -> None:
    await sqlite.enqueue_rollout("kept")
    connection = sqlite.db.connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    large: list[tuple[str, dict[str, Any]]] = [
        ("add_run", {"run_id": f"r{i}", "info": {"x": str(range(i, 99))}}) for i in range(9_000)
    ]
    with pytest.raises(StoreError, match="full"):
        await sqlite.batch([("enqueue_rollout", {"input": 1}), *large], request_id="b")
    connection.execute("PRAGMA max_page_count = 1000000")
    assert [r.input for r in await sqlite.query_rollouts()] == ["kept"] and await sqlite.query_runs() == []
    assert len(await sqlite.batch([("enqueue_rollout", {"input": 1}), *large], request_id="b")) == 9_001


async def test_nothing_waits_in_it(sqlite: SQLiteStore) -> None:
    made = await sqlite.enqueue_rollout(1)
    found = await sqlite.batch(
        [
            ("dequeue_rollout", {"wait": 1.0}),
            ("wait_for_rollouts", {"rollout_ids": [made.rollout_id]}),
            ("wait_for_rollouts", {"rollout_ids": [made.rollout_id], "timeout": 0}),
            ("dequeue_rollout", {"wait": 0.0}),
            ("no_such", {}),
            ("dequeue_rollout", {"no_such": 1}),
        ]
    )
    assert all(isinstance(found[i], ValueError) and "nothing waits" in str(found[i]) for i in (0, 1))
    assert found[2] == [] and found[3].rollout.rollout_id == made.rollout_id
    assert "no 'no_such'" in str(found[4]) and isinstance(found[5], TypeError)


async def test_reading_leaves_no_trace(sqlite: SQLiteStore) -> None:
    await sqlite.batch([("counts", {}), ("query_rollouts", {})], request_id="b")
    assert (await sqlite.batch([("count", {"kind": "k", "reason": "r"})], request_id="b")) == [None]
    assert await sqlite.counts() == {"k": {"r": 1}}


async def test_records_of_several_pages_are_read_within_a_batch(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, ended = await two_leases(sqlite)
    rollout_ids = [alive.rollout.rollout_id, ended.rollout.rollout_id]
    monkeypatch.setattr("agentlightning.store.sql.reading.record_pages", lambda ids: [[i] for i in ids])
    [found] = await sqlite.batch([("records", {"rollout_ids": rollout_ids})])
    assert [record.rollout.rollout_id for record in found] == rollout_ids
