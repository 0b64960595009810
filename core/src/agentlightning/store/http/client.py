"""The store of another process: the same interface over HTTP, generated from the table of routes.

One method is written by hand: ``records`` reads page by page.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentlightning.store.base import Store
from agentlightning.store.bounds import check_seconds
from agentlightning.store.call_spans import as_call_span
from agentlightning.store.calls import StoredRecord
from agentlightning.store.http.transport import Transport
from agentlightning.store.pages import record_pages
from agentlightning.store.routes import LONGEST_WAIT, STORED_RECORDS, TABLE, Route
from agentlightning.types import Record


class StoreClient(Transport, Store):
    """All of :class:`~agentlightning.store.base.Store`, served by ``agl store`` at ``url``.

    ``patience``: seconds to keep trying while the server cannot be reached.
    """

    async def records(self, rollout_ids: Sequence[str]) -> list[Record]:
        found: list[Record] = []
        for page in record_pages(rollout_ids):
            stored: list[StoredRecord] = await self._send("POST", STORED_RECORDS, page, list[StoredRecord])
            found += [one.whole() for one in stored]
        return found


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
