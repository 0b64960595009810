"""The store of another process: the same interface over HTTP, generated from the table of routes.

Methods are written by hand where one request is not enough: to wait for longer than a server holds a request,
to read records page by page, or to convert a span first.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentlightning.store.base import Store
from agentlightning.store.bounds import check_seconds
from agentlightning.store.call_spans import as_call_span
from agentlightning.store.calls import StoredRecord
from agentlightning.store.http.transport import Transport, new_request_id
from agentlightning.store.otel_spans import span_from_otel
from agentlightning.store.pages import record_pages
from agentlightning.store.routes import LONGEST_WAIT, STORED_RECORDS, TABLE, Route
from agentlightning.types import AttemptedRollout, Record, Rollout, Span

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
        start_attempt = Store.start_attempt
        update_attempt = Store.update_attempt
        heartbeat = Store.heartbeat
        update_rollout = Store.update_rollout
        requeue_rollouts = Store.requeue_rollouts
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

    async def dequeue_rollout(
        self,
        worker_id: str | None = None,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> AttemptedRollout | None:
        found = await self.dequeue_many_rollouts(
            worker_id, 1, run_id=run_id, wait=wait, request_id=request_id
        )
        return found[0] if found else None

    async def dequeue_many_rollouts(
        self,
        worker_id: str | None = None,
        limit: int = 1,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        check_seconds("wait", wait)
        clock = asyncio.get_running_loop().time
        asked = {"worker_id": worker_id, "limit": limit, "run_id": run_id}
        request_id = request_id or new_request_id()
        deadline = clock() + wait
        while True:
            part = max(0.0, min(deadline - clock(), LONGEST_WAIT))
            found: list[AttemptedRollout] = await self._call(
                "dequeue_many_rollouts", **asked, wait=part, request_id=request_id
            )
            if found or clock() >= deadline:
                return found

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        check_seconds("timeout", timeout)
        clock = asyncio.get_running_loop().time
        ids, wanted = list(rollout_ids), len(set(rollout_ids))
        deadline = None if timeout is None else clock() + timeout
        while True:
            part = LONGEST_WAIT if deadline is None else max(0.0, min(deadline - clock(), LONGEST_WAIT))
            found: list[Rollout] = await self._call("wait_for_rollouts", rollout_ids=ids, timeout=part)
            if len({r.rollout_id for r in found}) == wanted or (deadline is not None and clock() >= deadline):
                return found

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


def _method(route: Route) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(getattr(Store, route.name))
    parameters = list(signature.parameters.values())[1:]
    names = {p.name for p in parameters}
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    async def call(self: StoreClient, *args: Any, **given: Any) -> Any:
        arguments = {**defaults, **dict(zip(positional, args, strict=False)), **given}
        if len(args) > len(positional) or arguments.keys() != names or given.keys() & positional[: len(args)]:
            signature.bind(self, *args, **given)  # says what is wrong
        result = await self._call(route.name, **arguments)
        return [as_call_span(span) for span in result] if route.name == "query_spans" else result

    call.__name__, call.__qualname__ = route.name, f"StoreClient.{route.name}"
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


for _route in TABLE:
    if _route.name not in vars(StoreClient):
        setattr(StoreClient, _route.name, _method(_route))
