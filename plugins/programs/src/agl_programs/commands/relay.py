"""Witnesses the model calls of one attempt between a program and the gateway.

The program's ``OPENAI_BASE_URL`` is a relay on loopback, which passes each request on to the gateway and each
answer back as it arrives. A call that an instrumented SDK has described already (it bears our headers) is
only passed on. For any other call (another language, a plain HTTP client) the relay does what the wire layer
does inside an SDK: it names the attempt in the headers and makes the call's span from the answer that it
saw. The agent's name and tags that the program sends (``x-agl-agent``, ``x-agl-tags``, ``baggage``) outrank
those of the attempt. So the tokens of such a call are confirmed by a second reader, on the agent's side of
the gateway.

Invariants: bytes of answers are passed on unchanged; an attempt's key goes to the gateway only; a failure to
read an answer is counted and does not disturb the program.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.sdk_call import SDKCall, operation_of, with_identity
from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.identity import header_tags
from agentlightning.semconv import HEADER_AGENT, HEADER_TAGS, HEADER_TRACE
from agentlightning.types import merge_tags
from agentlightning.webserver import app_runner, listen
from agl_programs.commands.result import ModelCall

_LOG = logging.getLogger(__name__)
BODY_LIMIT = 64 << 20
"""Bytes of a request. The gateway refuses a smaller one than this already."""
ANSWER_LIMIT = 64 << 20
"""Bytes of an answer that are read; a longer answer is passed on unread and counted."""
CALLS_KEPT = 1_000
"""Calls that are kept for the reward function; further ones are passed on and counted."""
_HOP = {"host", "content-length", "connection", "keep-alive", "transfer-encoding", "te", "upgrade", "trailer"}
_NAMING = {HEADER_AGENT, HEADER_TAGS}
"""Headers whose tags are sent anew, joined with the attempt's."""
_PROVIDERS = ("openai", "anthropic")


class Relay:
    """The relay of one attempt. ``context.gateway`` is the gateway that it passes requests on to."""

    def __init__(self, context: AttemptContext) -> None:
        assert context.gateway is not None
        self._context = context
        parts = urlsplit(context.gateway)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path
        self.calls: list[ModelCall] = []
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = app_runner(app, shutdown_timeout=0.1)
        self._session: aiohttp.ClientSession | None = None

    async def start(self, inside: int | None = None) -> str:
        """Listen on loopback and return the base URL for the program. ``inside``: a port of the program's
        sandbox, on which :meth:`serve` listens instead.
        """
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        if inside is None:
            return await listen(self._runner) + self._path
        return f"http://127.0.0.1:{inside}{self._path}"

    async def serve(self, listening: socket.socket) -> None:
        """Answer on a socket that listens."""
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        """Stop listening. Requests under way are given up."""
        await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers: dict[str, Any] = {n: v for n, v in request.headers.items() if n.lower() not in _HOP}
        seen = _Seen(request, body, self._context)
        if seen.call is not None:
            own = {n: v for n, v in headers.items() if n.lower() not in _NAMING}
            headers = with_identity(seen.call, None, own)
        try:
            return await self._forward(request, body, headers, seen)
        except aiohttp.ClientError as error:
            seen.fail(error)
            message = f"the gateway cannot be reached: {error}"
            return web.json_response(
                {"error": {"message": message, "code": "gateway-unreachable"}}, status=502
            )
        except BaseException as error:
            seen.fail(error)
            raise
        finally:
            if seen.is_model_call:
                self._keep(seen.ended())

    async def _forward(
        self, request: web.Request, body: bytes, headers: Mapping[str, str], seen: _Seen
    ) -> web.StreamResponse:
        assert self._session is not None
        url = self._origin + request.raw_path
        sent = self._session.request(request.method, url, data=body, headers=headers, allow_redirects=False)
        async with sent as answer:
            seen.status, seen.kind = answer.status, answer.content_type
            kept = {n: v for n, v in answer.headers.items() if n.lower() not in _HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                seen.add(chunk)
                await response.write(chunk)
            seen.complete = True
            # The span is there before the program can know that its answer is.
            seen.read()
            await response.write_eof()
        return response

    def _keep(self, call: ModelCall) -> None:
        if len(self.calls) < CALLS_KEPT:
            self.calls.append(call)
        else:
            COUNTS.add("call-not-kept")


class _Seen:
    """One request and its answer as the relay saw them."""

    def __init__(self, request: web.Request, body: bytes, context: AttemptContext) -> None:
        self.path, self.request = request.path, _decoded(body)
        operations = {sdk: found for sdk in _PROVIDERS if (found := operation_of(sdk, request.path))}
        self.is_model_call = request.method == "POST" and bool(operations)
        self.call: SDKCall | None = None
        if self.is_model_call and HEADER_TRACE not in request.headers and isinstance(self.request, dict):
            self.call = _call(context, request, self.request, operations)
        self.status, self.kind, self.complete = 0, "", False
        self._data: bytearray | None = bytearray()
        self._answer: Any = None
        self._was_read = False

    def add(self, chunk: bytes) -> None:
        """Add a part of the answer."""
        if self._data is None or not self.is_model_call:
            return
        self._data += chunk
        if len(self._data) > ANSWER_LIMIT:
            self._data = None
            COUNTS.add("wire-not-read")

    def read(self) -> None:
        """Read what has arrived, and deliver the call's span."""
        if self._was_read or not self.is_model_call:
            return
        self._was_read = True
        streamed = self.kind == "text/event-stream"
        if self._data is not None:
            self._answer = list(_events(bytes(self._data))) if streamed else _decoded(bytes(self._data))
        if self.call is None:
            return
        if self.status != 200 or self._answer is None:
            refused = None if self.status == 200 else CallRefused(self.status, self._answer)
            self.call.end(refused, complete=False)
            return
        for piece in self._answer if streamed else [self._answer]:
            if streamed:
                self.call.add_chunk(piece)
            else:
                self.call.add_whole(piece)
        self.call.end(complete=self.complete)

    def fail(self, error: BaseException) -> None:
        """End a call whose answer did not come, or not to its end."""
        if self.call is not None and not self._was_read:
            self._was_read = True
            self.call.end(error, complete=False)

    def ended(self) -> ModelCall:
        """Return the call as a reward function gets it."""
        self.read()
        return ModelCall(self.path, self.request, self.status, self._answer)


def _call(
    context: AttemptContext, request: web.Request, body: Mapping[str, Any], operations: Mapping[str, str]
) -> SDKCall | None:
    """The call of a request, with the tags that the program sends; none if these are malformed, because the
    gateway then refuses the request as it came, and says why.
    """
    try:
        tags = merge_tags(context.tags, header_tags(request.headers))
    except RequestRefused:
        return None
    sdk, operation = next(iter(operations.items()))
    return SDKCall(dataclasses.replace(context, tags=tags), sdk, body, operation, gateway=True)


class CallRefused(Exception):
    """The gateway or the engine refused the call, as an SDK's exception says it."""

    def __init__(self, status: int, answer: Any) -> None:
        error = answer.get("error") if isinstance(answer, dict) else None
        about: dict[str, Any] = error if isinstance(error, dict) else {}
        super().__init__(str(about.get("message") or f"HTTP {status}"))
        self.status_code, self.code = status, about.get("code")


class _Fields(dict[str, Any]):
    """A JSON object whose keys are attributes too, as of an SDK's object."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body, object_hook=_Fields)
    except (ValueError, RecursionError):
        return None


def _events(body: bytes) -> Iterable[Any]:
    """Yield the JSON of the events of a stream (server-sent events, one line of data each)."""
    for line in body.splitlines():
        if line.startswith(b"data:") and (found := _decoded(line[5:].strip())) is not None:
            yield found
