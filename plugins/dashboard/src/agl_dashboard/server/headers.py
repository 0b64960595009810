"""What a browser may do with a page: nothing that the page does not bring along itself.

No script and no style stands inside a page, so a string that an agent wrote can be neither, even if it were
ever written without escaping. A view that an example draws as a page of its own is shown in a frame without
scripts, origin or network.
"""

from __future__ import annotations

import time
from typing import Any, Final

from aiohttp import web

from agentlightning.webserver.guard import Handler

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
FRAME_POLICY: Final = "; ".join(
    (
        "sandbox",
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
COMMON: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def add_headers() -> Any:
    """Make the middleware that adds the headers, and the server's time for each answer."""

    @web.middleware
    async def added(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        answer = await handler(request)
        if answer.prepared:  # a stream has sent its headers
            return answer
        for name, value in COMMON.items():
            answer.headers.setdefault(name, value)
        answer.headers.setdefault("Content-Security-Policy", POLICY)
        answer.headers.setdefault("Cache-Control", "no-store")
        answer.headers["Server-Timing"] = f"total;dur={1000 * (time.perf_counter() - began):.1f}"
        return answer

    return added
