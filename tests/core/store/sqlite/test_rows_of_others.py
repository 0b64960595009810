"""Rows that an earlier version took and this one would refuse: they are read, and stop nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from contract.storing import call, reward, span

from agentlightning import semconv
from agentlightning.credit import assign, resolve
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore, codec
from agentlightning.store.sql.rollouts import UNREADABLE
from agentlightning.types import LLM, AttemptStatus, RolloutConfig


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "store.sqlite"


def put(file: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(file) as rows:
        assert rows.execute(statement, values).rowcount == 1
    rows.close()


async def test_a_queued_row_without_metadata_blocks_nobody(file: Path) -> None:
    store = SQLiteStore(file)
    for n in range(3):
        await store.enqueue_rollout(n, rollout_id=f"ro-{n}", metadata={"n": n})
    await store.close()
    put(file, "UPDATE rollouts SET metadata = ? WHERE rollout_id = 'ro-0'", codec.pack("x"))
    put(file, "UPDATE rollouts SET config = ? WHERE rollout_id = 'ro-1'", codec.pack({"retry_on": 5}))
    store = SQLiteStore(file)
    leases = await store.dequeue_many_rollouts("w", 5)
    assert [lease.rollout.input for lease in leases] == [0, 1, 2]
    assert UNREADABLE in leases[0].rollout.metadata and leases[1].rollout.config == RolloutConfig()
    assert len(await store.query_rollouts()) == 3
    await store.close()


async def with_spoiled_spans(file: Path) -> str:
    """Write a run with a rollout whose spans are of the wrong shape; return the rollout's id."""
    store = SQLiteStore(file)
    await store.add_run("r", {"run_id": "r"})
    lease = await store.start_rollout(1, run_id="r")
    await store.add_calls([call(lease)])
    await store.add_many_spans([reward(lease, 0.25), reward(lease, 0.5), span(lease, "tool")])
    ids = lease.rollout.rollout_id, lease.attempt.attempt_id
    await store.update_attempt(*ids, AttemptStatus.SUCCEEDED)
    await store.close()
    bad = reward(lease, 1.0, **{semconv.REWARD_AGENT: ["writer", "critic"]})
    put(file, "UPDATE spans SET data = ? WHERE sequence = 3", codec.pack_span(bad))
    put(file, "UPDATE spans SET data = ? WHERE sequence = 4", codec.pack({"no": "span"}))
    put(file, "UPDATE attempts SET metadata = ?", codec.pack({semconv.SUPPLIED: 5}))
    return ids[0]


async def test_spans_of_the_wrong_shape_end_no_step(file: Path) -> None:
    rollout_id = await with_spoiled_spans(file)
    store = SQLiteStore(file)
    (record,) = await store.records([rollout_id])
    assert resolve(record).final == 0.25
    assert resolve(record).missing == {"nan": 1, "unattached": 1}
    batch = assign([record], GRPO(credit="per_agent"))
    assert batch.metrics["reward_mean"] == 0.25 and batch.ledgers[0].sums
    names = [one.name for one in await store.spans(rollout_id)]
    assert names.count(semconv.BAD_RECORD_SPAN) == 1
    await store.close()


async def test_resources_that_are_none_are_shown_as_they_are(file: Path) -> None:
    store = SQLiteStore(file)
    made = await store.add_resources({"llm": LLM(endpoint="http://x/v1", model="m"), "note": "a {text}"})
    with pytest.raises(ValueError, match=r"resources\['llm'\].endpoint"):
        await store.add_resources({"llm": LLM(endpoint=5, model="m")})  # type: ignore[arg-type]
    await store.close()
    put(file, "UPDATE resources SET data = ?", codec.pack({"llm": {"resource_type": "llm", "endpoint": 5}}))
    store = SQLiteStore(file)
    found = await store.get_resources_by_id(made.resources_id)
    assert found.resources["llm"].value == {"resource_type": "llm", "endpoint": 5}  # type: ignore[union-attr]
    assert [one.resources_id for one in await store.query_resources()] == [made.resources_id]
    await store.close()
