"""``GET /metrics`` of a store's server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from agentlightning.store.base import Store
from agl_cluster.prometheus import Exposed, Values, exposition, families
from agl_cluster.roles import Role
from agl_cluster.store.load import Load

METRICS: Final = "/metrics"
METRICS_ROLE: Final = Role.RUNNER
EXPOSED: Final = (
    Exposed("agl_store_requests", "counter", "Requests answered.", ("route", "status")),
    Exposed("agl_store_request_seconds", "counter", "Seconds of requests, waits included.", ("route",)),
    Exposed("agl_store_requests_under_way", "gauge", "Requests that are being answered."),
    Exposed("agl_store_writes_under_way", "gauge", "Writes that are being committed."),
    Exposed("agl_store_write_bytes_under_way", "gauge", "Bytes of their bodies."),
    Exposed("agl_store_busy", "counter", "Writes refused because too many were under way."),
    Exposed("agl_store_counted", "counter", "Refusals and losses on file.", ("kind", "reason")),
)  # fmt: skip


class RequestCounts:
    """Counts the requests of one server by route."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, ...]] = Counter()
        self.seconds: Counter[tuple[str, ...]] = Counter()
        self.under_way = 0

    @property
    def middleware(self) -> Any:
        """The middleware that counts."""

        @web.middleware
        async def counting(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            began, status = time.perf_counter(), 499  # 499: the client hung up
            self.under_way += 1
            try:
                response = await handler(request)
                status = response.status
                return response
            except web.HTTPException as error:
                status = error.status
                raise
            finally:
                self.under_way -= 1
                resource = request.match_info.route.resource
                route = "(unknown)" if resource is None else resource.canonical
                self.answered[route, str(status)] += 1
                self.seconds[(route,)] += time.perf_counter() - began  # type: ignore[assignment]

        return counting


def metrics_page(
    store: Store, load: Load, counts: RequestCounts
) -> Callable[[web.Request, object], Awaitable[web.StreamResponse]]:
    """Return the handler of the page, which serves every caller alike."""

    async def page(request: web.Request, caller: object) -> web.StreamResponse:
        on_file = await store.counts()
        values: Values = {
            "agl_store_requests": counts.answered,
            "agl_store_request_seconds": counts.seconds,
            "agl_store_requests_under_way": counts.under_way,
            "agl_store_writes_under_way": load.writes,
            "agl_store_write_bytes_under_way": load.bytes,
            "agl_store_busy": load.refused,
            "agl_store_counted": {(k, r): n for k, of in on_file.items() for r, n in of.items()},
        }
        body, kind = exposition(families(EXPOSED, values), request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    return page
