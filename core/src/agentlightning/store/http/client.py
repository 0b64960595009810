"""The store of another process: the same interface over HTTP, generated from the table of routes.

Two methods are written by hand: ``records`` reads page by page, and ``add_otel_span`` converts a span first.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentlightning.store.base import Store
from agentlightning.store.bounds import check_seconds
from agentlightning.store.call_spans import as_call_span
from agentlightning.store.calls import StoredRecord
from agentlightning.store.http.transport import Transport
from agentlightning.store.otel_spans import span_from_otel
from agentlightning.store.pages import record_pages
from agentlightning.store.routes import LONGEST_WAIT, STORED_RECORDS, TABLE, Route
from agentlightning.types import Record, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class StoreClient(Transport):
    """All of :class:`~agentlightning.store.base.Store`, served by ``agl store`` at ``url``.

    ``patience``: seconds to keep trying while the server cannot be reached.
    """

    if TYPE_CHECKING:  # generated at the end of this module
        enqueue_rollout = Store.enqueue_rollout
        enqueue_many_rollouts = Store.enqueue_many_rollouts
        start_rollout = Store.start_rollout
        dequeue_rollout = Store.dequeue_rollout
        dequeue_many_rollouts = Store.dequeue_many_rollouts
        start_attempt = Store.start_attempt
        update_attempt = Store.update_attempt
        heartbeat = Store.heartbeat
        update_rollout = Store.update_rollout
        requeue_rollouts = Store.requeue_rollouts
        wait_for_rollouts = Store.wait_for_rollouts
        get_rollout_by_id = Store.get_rollout_by_id
        query_rollouts = Store.query_rollouts
        query_attempts = Store.query_attempts
        get_latest_attempt = Store.get_latest_attempt
        add_span = Store.add_span
        add_many_spans = Store.add_many_spans
        get_next_span_sequence_id = Store.get_next_span_sequence_id
        get_many_span_sequence_ids = Store.get_many_span_sequence_ids
        query_spans = Store.query_spans
        add_calls = Store.add_calls
        query_calls = Store.query_calls
        add_resources = Store.add_resources
        update_resources = Store.update_resources
        get_latest_resources = Store.get_latest_resources
        get_resources_by_id = Store.get_resources_by_id
        query_resources = Store.query_resources
        add_run = Store.add_run
        update_run = Store.update_run
        query_runs = Store.query_runs
        delete_run = Store.delete_run
        prune = Store.prune
        add_step = Store.add_step
        add_link = Store.add_link
        query_links = Store.query_links
        query_steps = Store.query_steps
        query_seals = Store.query_seals
        count = Store.count
        counts = Store.counts
        update_worker = Store.update_worker
        get_worker_by_id = Store.get_worker_by_id
        query_workers = Store.query_workers
        statistics = Store.statistics

    async def records(self, rollout_ids: Sequence[str]) -> list[Record]:
        found: list[Record] = []
        for page in record_pages(rollout_ids):
            stored: list[StoredRecord] = await self._send("POST", STORED_RECORDS, page, list[StoredRecord])
            found += [one.whole() for one in stored]
        return found

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
        *,
        request_id: str | None = None,
    ) -> Span:
        span = span_from_otel(rollout_id, attempt_id, readable_span, sequence_id)
        numbered = sequence_id is not None
        return (await self.add_many_spans([span], numbered=numbered, request_id=request_id))[0]


_WAITS: Mapping[str, tuple[str, Callable[[dict[str, Any], Any], bool]]] = {
    "dequeue_rollout": ("wait", lambda given, found: found is not None),
    "dequeue_many_rollouts": ("wait", lambda given, found: bool(found)),
    "wait_for_rollouts": (
        "timeout",
        lambda given, found: {r.rollout_id for r in found} >= set(given["rollout_ids"]),
    ),
}
"""Method that waits → the parameter with the seconds, and whether its result ends the wait."""


def _method(route: Route) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(getattr(Store, route.name))

    async def call(self: StoreClient, *args: Any, **given: Any) -> Any:
        bound = signature.bind(self, *args, **given)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        if route.name in _WAITS:
            return await _wait(self, route.name, arguments)
        result = await self._call(route.name, **arguments)
        return [as_call_span(span) for span in result] if route.name == "query_spans" else result

    call.__name__, call.__qualname__ = route.name, f"StoreClient.{route.name}"
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


async def _wait(client: StoreClient, name: str, arguments: dict[str, Any]) -> Any:
    """Ask again until the wait ends: a server holds one request for ``LONGEST_WAIT`` seconds at most."""
    seconds_name, ends = _WAITS[name]
    seconds = arguments[seconds_name]
    check_seconds(seconds_name, seconds)
    clock = asyncio.get_running_loop().time
    deadline = math.inf if seconds is None else clock() + seconds
    while True:
        arguments[seconds_name] = max(0.0, min(deadline - clock(), LONGEST_WAIT))
        found = await client._call(name, **arguments)
        if ends(arguments, found) or clock() >= deadline:
            return found


for _route in TABLE:
    if _route.name not in vars(StoreClient):
        setattr(StoreClient, _route.name, _method(_route))
