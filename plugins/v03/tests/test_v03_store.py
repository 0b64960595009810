"""A store in v0.3's manner: what its programs ask, and what they rely on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import agentlightning as agl
from agentlightning import EnqueueRolloutRequest  # type: ignore[attr-defined]
from agentlightning.store import InMemoryLightningStore, LightningStoreServer, LightningStoreThreaded
from agentlightning.store.base import NotFound


@pytest.fixture
async def store() -> AsyncIterator[InMemoryLightningStore]:
    opened = InMemoryLightningStore()
    yield opened
    await opened.close()


async def test_a_lease_is_flat_and_has_its_attempt(store: InMemoryLightningStore) -> None:
    queued = await store.enqueue_rollout(input={"q": 1}, mode="val", metadata={"k": 1})
    assert queued.status == "queuing" and queued.config.max_attempts == 1
    leased = await store.dequeue_rollout(worker_id="w")
    assert leased is not None and isinstance(leased, agl.Rollout)
    assert (leased.rollout_id, leased.input, leased.mode) == (queued.rollout_id, {"q": 1}, "val")
    assert leased.attempt.worker_id == "w" and leased.attempt.sequence_id == 1
    assert leased.model_dump()["attempt"]["attempt_id"] == leased.attempt.attempt_id
    assert await store.dequeue_rollout() is None and await store.dequeue_many_rollouts(limit=0) == []
    plain = await agl.open_store(":memory:").start_rollout("x")  # the core's own lease, by the same names
    assert plain.input == "x" and plain.rollout_id == plain.rollout.rollout_id
    with pytest.raises(AttributeError, match="nothing"):
        _ = plain.nothing


async def test_many_requests_keep_their_order(store: InMemoryLightningStore) -> None:
    made = await store.enqueue_many_rollouts(
        [EnqueueRolloutRequest(input=i, metadata={"i": i}) for i in range(3)]
    )
    assert [r.input for r in made] == [0, 1, 2] and made[2].metadata == {"i": 2}
    assert [r.input for r in await store.dequeue_many_rollouts(limit=2)] == [0, 1]


async def test_what_does_not_exist_is_none_or_a_value_error(store: InMemoryLightningStore) -> None:
    assert await store.get_rollout_by_id("ro-none") is None
    assert await store.get_resources_by_id("rs-none") is None
    assert await store.get_worker_by_id("w-none") is None
    assert list(await store.query_spans("ro-none")) == []
    assert await store.wait_for_rollouts(rollout_ids=["ro-none"], timeout=0.0) == []
    for asking in (
        store.get_latest_attempt("ro-none"),
        store.update_rollout("ro-none", status="failed"),  # type: ignore[arg-type]
        store.start_attempt("ro-none"),
        store.query_attempts("ro-none"),
        store.get_next_span_sequence_id("ro-none", "at-none"),
    ):
        with pytest.raises(ValueError, match="ro-none"):
            await asking
    queued = await store.enqueue_rollout(1)
    assert await store.get_latest_attempt(queued.rollout_id) is None
    with pytest.raises(ValueError, match="No attempts found"):
        await store.update_attempt(queued.rollout_id, "latest", status="running")


async def test_rollouts_are_filtered_sorted_and_paged(store: InMemoryLightningStore) -> None:
    made = [await store.enqueue_rollout(i) for i in range(4)]
    ids = [r.rollout_id for r in made]
    await store.update_rollout(ids[1], status="cancelled")  # type: ignore[arg-type]
    await store.dequeue_rollout()
    page = await store.query_rollouts(status_in=["queuing"], sort_by="rollout_id", limit=1, offset=1)
    assert (page.total, page.limit, page.offset, len(page)) == (2, 1, 1, 1)
    assert page[0].rollout_id == sorted(ids[2:])[1] and page[:5] == list(page)
    both = await store.query_rollouts(
        status_in=["cancelled"], rollout_id_contains=ids[3][-6:], filter_logic="or"
    )
    assert {r.rollout_id for r in both} == {ids[1], ids[3]}
    assert len(await store.query_rollouts(rollout_ids=ids, rollout_id_in=[ids[0]])) == 1  # the new name wins
    newest = await store.query_rollouts(sort_by="start_time", sort_order="desc")
    assert newest[0].rollout_id == ids[3] and newest.total == 4
    started = await store.get_rollout_by_id(ids[0])
    assert started is not None and started.attempt.sequence_id == 1  # type: ignore[union-attr]
    assert len(await store.query_rollouts(limit=0)) == 0 and len(await store.query_rollouts(offset=9)) == 0
    with pytest.raises(ValueError, match="no field 'nope'"):
        await store.query_rollouts(sort_by="nope")
    with pytest.raises(ValueError, match="filter_logic is 'xor'"):
        await store.query_rollouts(filter_logic="xor")  # type: ignore[arg-type]


async def test_the_latest_attempt_is_updated_by_its_nickname(store: InMemoryLightningStore) -> None:
    started = await store.start_rollout("task", worker_id="w")
    second = await store.start_attempt(started.rollout_id)
    updated = await store.update_attempt(started.rollout_id, "latest", status="running", metadata={"a": 1})
    assert updated.attempt_id == second.attempt.attempt_id and updated.metadata == {"a": 1}
    await store.update_attempt(started.rollout_id, "latest", status="succeeded")
    done = await store.get_rollout_by_id(started.rollout_id)
    assert done is not None and done.status == "succeeded" and done.end_time is not None
    attempts = await store.query_attempts(started.rollout_id, sort_order="desc", limit=1)
    assert attempts.total == 2 and attempts[0].sequence_id == 2
    assert [r.rollout_id for r in await store.wait_for_rollouts(rollout_ids=[started.rollout_id])]


async def test_a_failed_attempt_is_retried_only_if_asked(store: InMemoryLightningStore) -> None:
    for retried, status in ((False, "failed"), (True, "requeuing")):
        config = agl.RolloutConfig(max_attempts=2, retry_condition=["failed"]) if retried else None  # type: ignore[list-item]
        started = await store.start_rollout("task", config=config)
        await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="failed")
        found = await store.get_rollout_by_id(started.rollout_id)
        assert found is not None and found.status == status


async def test_spans_are_numbered_once_and_queried(store: InMemoryLightningStore) -> None:
    started = await store.start_rollout("task")
    owner = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    number = await store.get_next_span_sequence_id(**owner)
    first = agl.Span(**owner, name="alpha", span_id="s1", trace_id="t", sequence_id=number)
    kept = await store.add_span(first)
    assert kept is not None and kept.sequence_id == number
    assert await store.add_span(agl.Span(**owner, name="alpha", span_id="s1")) is None  # a second time
    await store.add_many_spans([agl.Span(**owner, name=f"beta {i}", span_id=f"b{i}") for i in range(3)])
    found = await store.query_spans(started.rollout_id, "latest", name_contains="beta", limit=2)
    assert found.total == 3 and [s.name for s in found] == ["beta 0", "beta 1"]
    either = await store.query_spans(started.rollout_id, name="alpha", span_id="b2", filter_logic="or")
    assert {s.span_id for s in either} == {"s1", "b2"}
    assert (await store.get_latest_attempt(started.rollout_id)).status == "running"  # type: ignore[union-attr]


async def test_resources_are_made_under_a_chosen_id(store: InMemoryLightningStore) -> None:
    assert await store.get_latest_resources() is None
    made = await store.update_resources("mine", {"prompt": agl.PromptTemplate(template="a")})
    again = await store.update_resources("mine", {"prompt": agl.PromptTemplate(template="b")})
    assert (made.resources_id, made.version, again.version) == ("mine", 1, 2)
    other = await store.add_resources({"prompt": agl.PromptTemplate(template="c")})
    page = await store.query_resources(sort_by="version", limit=1)
    assert page.total == 2 and page[0].resources_id == other.resources_id
    assert [r.resources_id for r in await store.query_resources(resources_id_contains="min")] == ["mine"]
    latest = await store.get_latest_resources()
    assert latest is not None and latest.resources_id == other.resources_id


async def test_workers_are_filtered(store: InMemoryLightningStore) -> None:
    await store.update_worker("w-1", {"cpu": 1})
    await store.enqueue_rollout(1)
    await store.dequeue_rollout(worker_id="w-2")
    assert [w.worker_id for w in await store.query_workers(status_in=["busy"])] == ["w-2"]
    assert (await store.query_workers(worker_id_contains="w-")).total == 2
    totals = await store.statistics()
    assert (totals["total_rollouts"], totals["total_attempts"], totals["total_workers"]) == (1, 1, 2)
    assert store.capabilities["thread_safe"] and isinstance(store, agl.LightningStore)


async def test_a_server_and_threads_share_the_store(tmp_path: Path) -> None:
    server = LightningStoreServer(agl.LightningStore(tmp_path / "s.sqlite"), port=0)
    with pytest.raises(agl.UsageError, match="not served yet"):
        _ = server.endpoint
    await server.start()
    try:
        queued = await LightningStoreThreaded(server).enqueue_rollout("over HTTP")
        client = agl.LightningStoreClient(server.endpoint)
        assert (await client.get_rollout_by_id(queued.rollout_id)).input == "over HTTP"
        await client.close()
    finally:
        await server.stop()
    with pytest.raises(agl.UsageError, match="served elsewhere"):
        await LightningStoreServer(agl.LightningStoreClient("http://localhost:4747")).start()
    with pytest.raises(agl.UsageError, match="there is no launch_mode here"):
        LightningStoreServer(launch_mode="mp")


async def test_other_stores_raise_and_page_after_the_last(tmp_path: Path) -> None:
    store = agl.LightningStore(tmp_path / "store.sqlite")
    for ask in (store.get_rollout_by_id, store.get_resources_by_id):
        with pytest.raises(NotFound):
            await ask("no")
    made = [(await store.enqueue_rollout(number)).rollout_id for number in range(3)]
    first = await store.query_rollouts(limit=2)
    rest = await store.query_rollouts(limit=2, after=first[-1].rollout_id)
    assert [one.rollout_id for one in (*first, *rest)] == made
    await store.close()
