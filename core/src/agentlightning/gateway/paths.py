"""The paths that the gateway serves, and the answer to all others.

One rule: a path under ``/v1`` is served without ``/v1`` too, since clients differ in whether their base URL
ends in it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from agentlightning.gateway.apis import format_of
from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.reply import error_response

VERSION = "/v1"
Route = tuple[str, str]
"""Method and path; a part ``{name}`` of the path stands for any."""


def spellings(path: str) -> list[str]:
    """A path as clients write it."""
    bare = path.removeprefix(VERSION)
    return [path] if bare == path else [path, bare]


Count = Callable[[web.Request, RequestRefused], Awaitable[None]]


class Unserved:
    """Answers requests of any path or method that is not among ``routes``, in the error shape of its API.

    ``count`` takes each of them: a program that asks for what is not served got no answer.
    """

    def __init__(self, routes: Iterable[Route], count: Count) -> None:
        self._methods: dict[str, list[str]] = {}
        for method, path in routes:
            self._methods.setdefault(path, []).append(method)
        self._listed = ", ".join(f"{'/'.join(methods)} {path}" for path, methods in self._methods.items())
        self._count = count

    async def serve(self, request: web.Request) -> web.Response:
        """Refuse a request."""
        why = self._why(request.path)
        await self._count(request, why)
        response = error_response(format_of(request.path), why.status, why.reason, str(why))
        if methods := self._methods_of(request.path):
            response.headers["Allow"] = ", ".join(methods)
        return response

    def _why(self, path: str) -> RequestRefused:
        if methods := self._methods_of(path):
            message = f"{path} takes {' and '.join(methods)}; routes: {self._listed}"
            return RequestRefused(405, "method-not-allowed", message)
        if not format_of(path).translated:
            return RequestRefused(404, "unknown-route", f"no route {path}; routes: {self._listed}")
        message = (
            f"{path} is not served: the gateway runs nothing in the background, no batches and no files. "
            f"Routes: {self._listed}"
        )
        return RequestRefused(404, "unsupported-route", message)

    def _methods_of(self, path: str) -> list[str]:
        for template, methods in self._methods.items():
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
            if any(re.fullmatch(pattern, spelled) for spelled in (path, VERSION + path)):
                return methods
        return []
