"""Numbers of spans that callers reserve, in a SQLite file and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from contract.paging import finish, leased
from contract.storing import span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from agentlightning.store import SQLiteStore
from agentlightning.store.base import AttemptEnded, Conflict, NotFound, Store
from agentlightning.types import Span
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start
from agl_v03.stores.v03_store import V03Store


class NumbersContract:
    async def test_numbers_are_given_once(self, store: Store) -> None:
        lease, other = await leased(store), await leased(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        assert await store.get_next_span_sequence_id(*ids) == 1
        assert (await store.add_span(span(lease))).sequence_id == 2
        assert [await store.get_next_span_sequence_id(*ids, request_id="n") for _ in range(2)] == [3, 3]
        pair = other.rollout.rollout_id, other.attempt.attempt_id
        assert await store.get_many_span_sequence_ids([ids, pair, ids]) == [4, 1, 5]
        assert (await store.add_span(span(lease, sequence_id=99))).sequence_id == 6
        kept = await store.add_numbered_spans([span(lease, "late", sequence_id=3)])
        assert kept[0].sequence_id == 3
        assert [s.sequence_id for s in await store.spans(ids[0])] == [2, 3, 6]
        for number, error in ((7, ValueError), (0, ValueError), (2, Conflict), (3, Conflict)):
            with pytest.raises(error):
                await store.add_numbered_spans([span(lease, sequence_id=number)])
        with pytest.raises(Conflict):
            await store.add_numbered_spans([span(lease, sequence_id=4), span(lease, sequence_id=4)])
        await finish(store, lease)
        with pytest.raises(AttemptEnded):
            await store.get_next_span_sequence_id(*ids)
        with pytest.raises(NotFound):
            await store.get_next_span_sequence_id(ids[0], "at-x")

    async def test_opentelemetry_spans_are_taken_as_they_are(self, store: Store) -> None:
        lease = await leased(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        number = await store.get_next_span_sequence_id(*ids)
        with TracerProvider().get_tracer("test").start_as_current_span("work") as live:
            live.set_attribute("k", ["a", "b"])
            live.add_event("happened", {"n": 1})
        assert isinstance(live, ReadableSpan)
        stored = await V03Store(store).add_otel_span(*ids, live, number)
        again = await V03Store(store).add_otel_span(*ids, live)
        assert stored is not None and stored.sequence_id == number and again is None
        found = (await store.spans(*ids))[0]
        assert isinstance(found, Span) and found == stored
        assert (found.name, found.attributes, found.events[0]["name"]) == (
            "work",
            {"k": ["a", "b"]},
            "happened",
        )
        assert found.trace_id == f"{live.get_span_context().trace_id:032x}"


class TestSQLite(NumbersContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[SQLiteStore]:
        opened = SQLiteStore(":memory:")
        yield opened
        await opened.close()


class TestClient(NumbersContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[StoreClient]:
        served = await start(SQLiteStore(":memory:"), port=0)
        client = StoreClient(served.url)
        yield client
        await client.close()
        await served.close()
