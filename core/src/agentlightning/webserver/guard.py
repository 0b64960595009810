"""A server on this machine answers programs, and refuses web pages that are open in a browser.

A page may send requests to ``127.0.0.1``, and a host name that an attacker lets point there (DNS rebinding)
makes it the same origin. Three signs show that a page sent a request, and no program of ours sends them: a
``Host`` that is no name of this machine, an ``Origin`` that is not the server's own, and a body of a type
that a browser sends without asking first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from agentlightning.types.base import RequestRefused
from agentlightning.webserver.loopback import host_of, is_loopback

JSON: Final = "application/json"
TYPES: Final = frozenset({JSON, "application/msgpack", "application/x-protobuf", "application/protobuf"})
"""Accepted types of a body. A browser sends none of them to another origin without asking it first."""
_FORMS: Final = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""Types that a browser sends without asking first."""
_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


Answer = Callable[[web.Request, RequestRefused], Awaitable[web.StreamResponse]]
Trusted = Callable[[web.Request], bool]


def check_cross_origin(request: web.Request, *, local: bool = True) -> RequestRefused | None:
    """Return the refusal of a request that a web page may have sent, or ``None``.

    ``local``: the server listens on loopback only, so its names are known.
    """
    headers = request.headers
    host = headers.get("Host", "")
    if local and host and not is_loopback(host_of(host)):
        return RequestRefused(
            403,
            "foreign-host",
            f"the Host of the request is {host[:100]!r}, and this server answers as localhost or 127.0.0.1 "
            "only. A proxy in front of it must send `Host: localhost`",
        )
    if (origin := headers.get("Origin")) is not None and origin.partition("://")[2] != host:
        return RequestRefused(
            403,
            "foreign-origin",
            f"the request comes from a web page, {origin[:100]!r}, which is not the server's own",
        )
    return None if request.method in _BODILESS else _undeclared(request)


def _undeclared(request: web.Request) -> RequestRefused | None:
    given = request.headers.get("Content-Type")
    if given == JSON or (given is None and not request.body_exists):
        return None
    found = "" if given is None else request.content_type
    if not request.body_exists and found not in _FORMS:
        return None
    if found in TYPES or (found.startswith("application/") and found.endswith("+json")):
        return None
    problem = f"is {found[:100]!r}" if found else "is missing"
    return RequestRefused(
        415, "undeclared-body", f"the Content-Type of the body {problem}: send `Content-Type: {JSON}`"
    )


def guard(answer: Answer, *, local: bool = True, trusted: Trusted | None = None) -> Any:
    """Make the middleware. ``answer`` writes a refusal in the server's own format. ``trusted`` tells whether
    a request bears a secret that no web page can know; such a request passes.
    """
    refused: Counter[str] = Counter()

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        why = check_cross_origin(request, local=local)
        if why is None or (trusted is not None and trusted(request)):
            return await handler(request)
        refused[why.reason] += 1
        if refused[why.reason] == 1:
            _log.warning("%s %r was refused: %s", request.method, request.path[:200], why.message)
        return await answer(request, why)

    return guarded
