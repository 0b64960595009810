"""A store as v0.3's answered: ``None`` for ids that do not exist, pages with filters and totals, flat leases.

:class:`V03Store` stands before any store of ours and changes only how it is asked and how it answers. Queries
read all results and cut them, as v0.3 did in memory; for long lists use the store itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from opentelemetry.sdk.trace import ReadableSpan

from agentlightning.capture.context import AttemptContext
from agentlightning.capture.records import convert
from agentlightning.plugins.stores import open_store
from agentlightning.store.base import Conflict, NotFound, Store
from agentlightning.store.pages import pages
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    Resources,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Span,
    Worker,
)
from agl_audit.store.statistics import statistics
from agl_audit.store.trace import query_spans
from agl_audit.store.workers import get_worker_by_id, query_workers, update_worker
from agl_v03.stores.numbers import add_numbered_spans, get_next_span_sequence_id
from agl_v03.stores.page import Page, page_of

Order = Literal["asc", "desc"]
Logic = Literal["and", "or"]
LATEST = "latest"
ONCE = RolloutConfig(max_attempts=1, unresponsive_seconds=None, retry_on=[])
"""What v0.3 does without a configuration: one attempt, and no limit."""


class RolloutWithAttempt(Rollout, kw_only=True):
    """A rollout and its attempt as one record, with the rollout's fields at the top."""

    attempt: Attempt


class MissingId(NotFound, ValueError):
    """A rollout or an attempt does not exist, in v0.3's kind of error."""


@contextlib.contextmanager
def _missing_as_value_error() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise MissingId(str(error)) from None


class V03Store:
    """``store``, asked and answering as in v0.3. What v0.3 did not have goes to ``store`` as it is."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = open_store(":memory:") if store is None else store

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # not made yet
            raise AttributeError(name)
        return getattr(self.store, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store!r})"

    @property
    def capabilities(self) -> dict[str, bool]:
        """What the store can do: it is safe for tasks and for threads."""
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    # -- work
    async def enqueue_rollout(
        self,
        input: Any,
        mode: Literal["train", "val", "test"] | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        """Queue a rollout. Default of ``config``: one attempt without limits."""
        return await self.store.enqueue_rollout(
            input, mode or "train", resources_id, config or ONCE, metadata
        )

    async def enqueue_many_rollouts(self, rollouts: Sequence[Mapping[str, Any] | Rollout]) -> list[Rollout]:
        """Queue rollouts in their order, each a mapping of the arguments of :meth:`enqueue_rollout`."""
        made = [r if isinstance(r, Rollout) else _requested(r) for r in rollouts]
        return await self.store.enqueue_many_rollouts(made)

    async def start_rollout(
        self,
        input: Any,
        mode: Literal["train", "val", "test"] | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
    ) -> RolloutWithAttempt:
        """Start a rollout past the queue."""
        leased = await self.store.start_rollout(
            input, mode or "train", resources_id, config or ONCE, metadata, worker_id=worker_id
        )
        return _flat(leased)

    async def dequeue_rollout(self, worker_id: str | None = None) -> RolloutWithAttempt | None:
        """Lease the oldest queued rollout; ``None`` if the queue is empty."""
        leased = await self.store.dequeue_rollout(worker_id)
        return None if leased is None else _flat(leased)

    async def dequeue_many_rollouts(
        self, *, limit: int = 1, worker_id: str | None = None
    ) -> list[RolloutWithAttempt]:
        """Lease at most ``limit`` queued rollouts."""
        if limit < 1:
            return []
        return [_flat(one) for one in await self.store.dequeue_many_rollouts(worker_id, limit)]

    async def start_attempt(self, rollout_id: str, worker_id: str | None = None) -> RolloutWithAttempt:
        """Start another attempt of a rollout."""
        with _missing_as_value_error():
            return _flat(await self.store.start_attempt(rollout_id, worker_id=worker_id))

    async def update_rollout(
        self,
        rollout_id: str,
        status: RolloutStatus | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Rollout:
        """Set status or configuration, merge metadata."""
        with _missing_as_value_error():
            return await self.store.update_rollout(rollout_id, status, config=config, metadata=metadata)

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: Any = None,
        worker_id: str | None = None,
        last_heartbeat_time: float | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Attempt:
        """Update an attempt; ``"latest"`` means the rollout's last. The store notes the time of the heartbeat
        itself.
        """
        with _missing_as_value_error():
            known = await self.store.query_attempts(rollout_id)
            if not known:
                raise MissingId(f"No attempts found: rollout {rollout_id} has not been started")
            chosen = known[-1].attempt_id if attempt_id == LATEST else attempt_id
            if last_heartbeat_time is not None and (worker := worker_id or known[-1].worker_id):
                await self.store.heartbeat(worker, [chosen])
            return await self.store.update_attempt(
                rollout_id, chosen, status, worker_id=worker_id, metadata=metadata
            )

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until these rollouts have ended, and return those that have. Ids that do not exist are left
        out of a wait with a timeout; without one they raise ValueError, for it would never end.
        """
        wanted = list(rollout_ids)
        if timeout is not None:
            wanted = [one for one in wanted if await self.get_rollout_by_id(one) is not None]
        with _missing_as_value_error():
            return await self.store.wait_for_rollouts(wanted, timeout)

    # -- queries
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | RolloutWithAttempt | None:
        """Return a rollout, with its latest attempt if there is one; ``None`` if it does not exist."""
        try:
            return await self._with_attempt(await self.store.get_rollout_by_id(rollout_id))
        except NotFound:
            return None

    async def query_rollouts(
        self,
        *,
        status_in: Sequence[str] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        filter_logic: Logic = "and",
        sort_by: str | None = None,
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[str] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> Page[Rollout]:
        """Return rollouts. ``status`` and ``rollout_ids`` are earlier names of ``…_in``, which win."""
        filters = {
            "status_in": ("status", status if status_in is None else status_in),
            "rollout_id_in": ("rollout_id", rollout_ids if rollout_id_in is None else rollout_id_in),
            "rollout_id_contains": ("rollout_id", rollout_id_contains),
        }
        every = [one async for one in _all(self.store.query_rollouts)]
        found = page_of(
            every,
            filters,
            logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )
        found.items = [await self._with_attempt(one) for one in found.items]
        return found

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str | None = "sequence_id",
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[Attempt]:
        """Return the attempts of a rollout."""
        with _missing_as_value_error():
            every = await self.store.query_attempts(rollout_id)
        return page_of(every, {}, sort_by=sort_by, sort_order=sort_order, limit=limit, offset=offset)

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the last attempt of a rollout; ``None`` before the first."""
        with _missing_as_value_error():
            return await self.store.get_latest_attempt(rollout_id)

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: Logic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str | None = "sequence_id",
        sort_order: Order = "asc",
    ) -> Page[Span]:
        """Return spans of all attempts of a rollout, or of one (``"latest"``: the last)."""
        filters = {
            "trace_id": ("trace_id", trace_id),
            "trace_id_contains": ("trace_id", trace_id_contains),
            "span_id": ("span_id", span_id),
            "span_id_contains": ("span_id", span_id_contains),
            "parent_id": ("parent_id", parent_id),
            "parent_id_contains": ("parent_id", parent_id_contains),
            "name": ("name", name),
            "name_contains": ("name", name_contains),
        }
        try:
            every = [one async for one in _all(partial(query_spans, self.store), rollout_id, attempt_id)]
        except NotFound:
            every = []
        return page_of(
            every,
            filters,
            logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )

    async def add_span(self, span: Span) -> Span | None:
        """Store a span; ``None`` if the attempt has it already."""
        return next(iter(await self.add_many_spans([span])), None)

    async def add_many_spans(self, spans: Sequence[Span]) -> list[Span]:
        """Store spans, and return those that are new: a span id is stored once in an attempt. A number that
        the store did not give out is replaced by the next.
        """
        known: dict[tuple[str, str], set[str]] = {}
        stored = []
        with _missing_as_value_error():
            for span in spans:
                owner = (span.rollout_id, span.attempt_id)
                if owner not in known:
                    of_attempt = _all(partial(query_spans, self.store), *owner)
                    known[owner] = {one.span_id async for one in of_attempt if one.span_id}
                if span.span_id in known[owner]:
                    continue
                known[owner] |= {span.span_id} - {""}
                stored.append(await self._add(span))
        return stored

    async def _add(self, span: Span) -> Span:
        if span.sequence_id > 0:
            with contextlib.suppress(ValueError, Conflict):
                return (await add_numbered_spans(self.store, [span]))[0]
        return await self.store.add_span(span)

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
    ) -> Span | None:
        """Store a finished span of OpenTelemetry, converted as capture does
        (:mod:`agentlightning.capture.records`). ``sequence_id``: a number that was reserved for it.
        """
        span = convert(readable_span, AttemptContext(rollout_id, attempt_id, sink=lambda _: None))
        span.sequence_id = sequence_id or 0
        return await self.add_span(span)

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Reserve the next sequence number of an attempt."""
        with _missing_as_value_error():
            return await get_next_span_sequence_id(self.store, rollout_id, attempt_id)

    # -- resources
    async def update_resources(self, resources_id: str, resources: Mapping[str, Any]) -> Resources:
        """Add the next version of a bundle, or the first under this id."""
        try:
            return await self.store.update_resources(resources_id, dict(resources))
        except NotFound:
            pass
        try:
            return await self.store.add_resources(dict(resources), resources_id=resources_id)
        except Conflict:  # another task was first
            return await self.store.update_resources(resources_id, dict(resources))

    async def get_resources_by_id(self, resources_id: str) -> Resources | None:
        """Return the newest version of a bundle; ``None`` if it does not exist."""
        try:
            return await self.store.get_resources_by_id(resources_id)
        except NotFound:
            return None

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        sort_by: str | None = None,
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[Resources]:
        """Return bundles, the first one first."""
        every = [one async for one in _all(self.store.query_resources)][::-1]
        filters = {
            "resources_id": ("resources_id", resources_id),
            "resources_id_contains": ("resources_id", resources_id_contains),
        }
        return page_of(every, filters, sort_by=sort_by, sort_order=sort_order, limit=limit, offset=offset)

    # -- workers
    async def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | None = None) -> Worker:
        """Note a worker's heartbeat."""
        return await update_worker(self.store, worker_id, stats=heartbeat_stats)

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return a worker; ``None`` if it never reported."""
        try:
            return await get_worker_by_id(self.store, worker_id)
        except NotFound:
            return None

    async def query_workers(
        self,
        *,
        status_in: Sequence[str] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: Logic = "and",
        sort_by: str | None = None,
        sort_order: Order = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> Page[Worker]:
        """Return workers."""
        filters = {
            "status_in": ("status", status_in),
            "worker_id_contains": ("worker_id", worker_id_contains),
        }
        every = [one async for one in _all(partial(query_workers, self.store))]
        return page_of(
            every,
            filters,
            logic=filter_logic,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            offset=offset,
        )

    async def statistics(self) -> dict[str, Any]:
        """Return totals by v0.3's names, beside the store's own."""
        found = await statistics(self.store)
        rollouts = [one async for one in _all(self.store.query_rollouts)]
        return {
            **found,
            "name": type(self.store).__name__,
            "total_rollouts": len(rollouts),
            "total_attempts": sum(one.attempts for one in rollouts),
            "total_resources": len([one async for one in _all(self.store.query_resources)]),
            "total_workers": len([one async for one in _all(partial(query_workers, self.store))]),
        }

    async def _with_attempt(self, rollout: Rollout) -> Rollout | RolloutWithAttempt:
        latest = await self.store.get_latest_attempt(rollout.rollout_id) if rollout.attempts else None
        return rollout if latest is None else _joined(rollout, latest)


def plain_store(store: Any) -> Any:
    """Return the store that a :class:`V03Store` stands before; any other value as it is."""
    return store.store if isinstance(store, V03Store) else store


class InMemoryLightningStore(V03Store):
    """A store in memory, which ends with the process."""

    def __init__(self, **limits: Any) -> None:
        """``limits``: sizes at which v0.3 evicted spans. They have no effect: nothing is
        evicted.
        """
        super().__init__(open_store(":memory:"))


class LightningStoreThreaded(V03Store):
    """The store for several threads. Every store of ours is: this is the one that was given."""

    def __init__(self, store: Any) -> None:
        super().__init__(plain_store(store))


async def _all(query: Any, *args: Any) -> AsyncIterator[Any]:
    async for page in pages(query, *args):
        for one in page:
            yield one


def _flat(leased: AttemptedRollout) -> RolloutWithAttempt:
    return _joined(leased.rollout, leased.attempt)


def _joined(rollout: Rollout, attempt: Attempt) -> RolloutWithAttempt:
    return RolloutWithAttempt(**msgspec.structs.asdict(rollout), attempt=attempt)


def _requested(given: Mapping[str, Any]) -> Rollout:
    fields = {key: value for key, value in dict(given).items() if value is not None}
    return Rollout(**{"rollout_id": "", "config": ONCE, **fields})
