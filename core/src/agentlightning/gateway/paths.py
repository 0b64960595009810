"""The paths that the gateway serves, and the answer to all others.

A path under ``/v1`` is served without ``/v1`` too, since clients differ in whether their base URL ends in it.
The paths of Azure's clients name the model: ``/openai/deployments/MODEL/chat/completions``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from aiohttp import web

from agentlightning.gateway.apis import CHAT, COMPLETIONS, ApiFormat, Route
from agentlightning.gateway.errors import RequestRefused
from agentlightning.plugins.manager import Plugins
from agentlightning.plugins.suite import checkout, not_installed

NATIVE: Final[Mapping[str, ApiFormat]] = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS}


Formats = Mapping[str, ApiFormat]
"""The APIs of a gateway, by the path of their model calls."""


def formats_of(plugins: Plugins) -> Formats:
    """Chat completions, completions, and the APIs of these plugins."""
    return {**NATIVE, **{path: spec.format() for path, spec in plugins.api_formats.items()}}


def format_of(formats: Formats, path: str) -> ApiFormat:
    """The format that an error of ``path`` is written in: that of its API, else the chat API's."""
    path = path if path.startswith("/v1/") else f"/v1{path}"
    for own, api in formats.items():
        bases = {own, *(route.partition("/{")[0] for _, route in api.routes())}
        if any(path == base or path.startswith(f"{base}/") for base in bases):
            return api
    return CHAT


VERSION = "/v1"


def spellings(path: str, *, azure: bool = True) -> list[str]:
    """A path as clients write it. ``azure``: those of Azure's clients are among them."""
    bare = path.removeprefix(VERSION)
    return [path] if bare == path else [path, bare, *(f"{base}{bare}" for base in _azure(path) if azure)]


def _azure(path: str) -> list[str]:
    """What Azure's clients put before a path without its version. Their endpoint or their base URL is the
    gateway's, with ``/v1`` or without.
    """
    bases = [f"{start}/openai{version}" for start in ("", VERSION) for version in ("", VERSION)]
    named = ["/openai", f"{VERSION}/openai", VERSION, ""] if path.endswith("/completions") else []
    return bases + [f"{base}/deployments/{{deployment}}" for base in named]


_INSTEAD = {
    "/embeddings": "embeddings are no answers of a policy; make their client with the URL and key of their "
    "own provider, in place of OPENAI_BASE_URL and OPENAI_API_KEY, and they go there past the gateway",
}
"""Ends of paths that clients of a model ask for, and what to do instead."""
_NO_BACKGROUND = "the gateway runs nothing in the background, no batches and no files"
Count = Callable[[web.Request, RequestRefused], Awaitable[None]]


class Unserved:
    """Answers requests of any path or method that is not among ``routes``, in the error shape of its API.

    ``count`` takes each of them: a program that asks for what is not served got no answer.
    """

    def __init__(self, formats: Formats, routes: Iterable[Route], count: Count) -> None:
        self._formats = formats
        self._instead: Mapping[str, str] = dict(_INSTEAD)
        for api in formats.values():
            self._instead |= api.instead
        self._methods: dict[str, list[str]] = {}
        for method, path in routes:
            self._methods.setdefault(path, []).append(method)
        self._listed = ", ".join(f"{'/'.join(methods)} {path}" for path, methods in self._methods.items())
        self._count = count

    async def serve(self, request: web.Request) -> web.Response:
        """Refuse a request."""
        why = self._why(request.path)
        await self._count(request, why)
        response = format_of(self._formats, request.path).error_response(why.status, why.reason, str(why))
        if why.status == 405 and (methods := self._methods_of(request.path)):
            response.headers["Allow"] = ", ".join(methods)
        return response

    def _why(self, path: str) -> RequestRefused:
        beside = next((instead for end, instead in self._instead.items() if path.endswith(end)), None)
        if beside is None and (methods := self._methods_of(path)):
            message = f"{path} takes {' and '.join(methods)}; routes: {self._listed}"
            return RequestRefused(405, "method-not-allowed", message)
        instead = beside or (
            _NO_BACKGROUND if format_of(self._formats, path).translated else _of_plugin(path)
        )
        if instead is None:
            return RequestRefused(404, "unknown-route", f"no route {path}; routes: {self._listed}")
        message = f"{path} is not served: {instead}. Routes: {self._listed}"
        return RequestRefused(404, "unsupported-route", message)

    def _methods_of(self, path: str) -> list[str]:
        for template, methods in self._methods.items():
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
            if any(re.fullmatch(pattern, spelled) for spelled in (path, VERSION + path)):
                return methods
        return []


def _of_plugin(path: str) -> str | None:
    """What to install for a path of an API that the suite has; ``None`` for any other."""
    bare = path.removeprefix(VERSION)
    api = next((api for api in checkout()["API"] if bare == api or bare.startswith(f"{api}/")), None)
    return api and not_installed("API", api)
