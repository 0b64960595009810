"""Receives the records of programs: OTLP at ``/v1/traces``, events as Agent Lightning 1.0 posts them, and two
routes for entries.

It is an HTTP server on loopback, and every request bears an attempt's key. Invariants: a key writes spans of
its own attempt only, and begins entries of its own program only; spans are stored as their request arrives,
and the answer means that all of them are on file; requests for an ended attempt are refused; refusals are
counted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec
from aiohttp import http_exceptions, web

from agentlightning.keys import ATTEMPT_BYTES, ByteQuota, Claims
from agentlightning.types import Span
from agentlightning.types.base import RequestRefused
from agentlightning.webserver import app_runner, listen
from agentlightning.webserver.body import decoded, read, too_large
from agl_cluster.store import otlp, traces
from agl_programs import events
from agl_programs.inside import messages
from agl_programs.inside.messages import BeginEntry, EndEntry, EntryBegun, ProcessReport

_LOG = logging.getLogger(__name__)
DRAIN_SECONDS = 2.0
"""Seconds that the connections of an ended program have to end, while their data is read."""
BODY_LIMIT = 64 << 20
"""Largest part of a request in bytes. A part is a span or a few."""
_SMALL = 64 << 10
"""Bytes that are decoded on the event loop; larger parts are decoded in a thread."""
_IDLE_SECONDS = 86_400.0
_HEALTH = "/v1/agl/health"
_BROKEN = (ConnectionError, web.RequestPayloadError, http_exceptions.HttpProcessingError)
"""Errors of reading a body whose process was killed."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def entry_refused(message: str) -> RequestRefused:
    """Return the refusal of a request about an entry."""
    return RequestRefused(409, "entry-refused", message)


class ConnectedProgram:
    """The processes of one attempt. ``begin`` and ``end`` open and close attempts of its entries; ``None``
    without ``--per-entry``.
    """

    def __init__(self) -> None:
        self.begin: Callable[[BeginEntry], Awaitable[EntryBegun]] | None = None
        self.end: Callable[[str, EndEntry], Awaitable[None]] | None = None
        self.reports: dict[str, ProcessReport] = {}
        """Process → its latest report."""
        self.requests: set[asyncio.Task[Any]] = set()
        """Requests that are being answered."""
        self.reading: dict[asyncio.Future[None], asyncio.Task[Any]] = {}
        """Requests whose body has not ended, by a future that is done when it has."""
        self.refused: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """Reason → records that could not be kept, here and in the processes."""
        return sum((Counter(report.counts) for report in self.reports.values()), +self.refused)


def adapter_errors(reports: Iterable[ProcessReport]) -> dict[str, str | None]:
    """Return, for each adapter, why it is active in no process; ``None`` if it is active in one."""
    found: dict[str, str | None] = {}
    for report in reports:
        for name, error in report.adapters.items():
            found[name] = None if found.get(name, "") is None else error
    return found


class KeyCheck(Protocol):
    """Checks keys of attempts, as :class:`~agentlightning.keys.Keys` does."""

    def check(self, key: str, now: float | None = None) -> Claims: ...


class Collector:
    """Serves the admitted programs. ``store`` takes their spans, and ``keys`` checks their keys."""

    def __init__(self, store: traces.SpanStore, keys: KeyCheck) -> None:
        self._store, self._keys = store, keys
        self._programs: dict[str, ConnectedProgram] = {}
        """Attempt → its program: attempts of processes, and of entries under way."""
        self._quota = ByteQuota(ATTEMPT_BYTES)
        self.refused: Counter[str] = Counter()
        """Requests without a valid key, by reason."""
        app = web.Application(middlewares=[self._authorized])
        app.router.add_get(_HEALTH, _healthy)
        app.router.add_post(traces.PATH, self._traces)
        app.router.add_post(events.PATH, self._event)
        app.router.add_post(messages.ENTRIES, self._begin)
        app.router.add_post(messages.END, self._end)
        # If a process was killed, the part of its request that arrived is stored.
        self._runner = app_runner(app, handler_cancellation=False, keepalive_timeout=_IDLE_SECONDS)

    async def start(self) -> str:
        """Listen on loopback and return the base URL."""
        return await listen(self._runner)

    async def serve(self, listening: socket.socket) -> None:
        """Answer on a further socket that listens: in a program's sandbox."""
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        """Stop the server."""
        await self._runner.cleanup()

    def admit(self, attempt_id: str, program: ConnectedProgram | None = None) -> ConnectedProgram:
        """Accept requests with the attempt's key. ``program``: the program whose entry the attempt is."""
        return self._programs.setdefault(attempt_id, program or ConnectedProgram())

    def dismiss(self, attempt_id: str) -> None:
        """Accept no more requests with the attempt's key."""
        self._programs.pop(attempt_id, None)

    async def drain(self, program: ConnectedProgram) -> None:
        """Store the spans that an ended program has sent. Connections of processes left behind are closed."""
        await self._accept_pending()
        if program.reading:
            _, late = await asyncio.wait(program.reading, timeout=DRAIN_SECONDS)
            program.refused["process-left-behind"] += len(late)
            for body in late:
                program.reading[body].cancel()
        if program.requests:
            await asyncio.wait(program.requests)

    async def _accept_pending(self) -> None:
        """Wait until all pending connections are accepted: they are accepted in order, so one more is opened
        and awaited.
        """
        host, port = self._runner.addresses[0][:2]
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(f"GET {_HEALTH} HTTP/1.0\r\n\r\n".encode())
                await reader.read()
                writer.close()
        except (OSError, TimeoutError) as error:  # later requests are refused, and counted
            _LOG.warning("not all connections of a program could be waited for: %r", error)

    # ------------------------------------------------------------------------------------------- requests
    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == _HEALTH:
            return await handler(request)
        try:
            _, program = self._identify(request)
        except RequestRefused as refused:
            self.refused[refused.reason] += 1
            return web.Response(status=refused.status, text=str(refused))
        task = asyncio.current_task()
        assert task is not None
        program.requests.add(task)
        try:
            return await handler(request)
        except RequestRefused as error:
            return web.Response(status=error.status, text=str(error))
        except web.HTTPException as refused:  # another path or verb
            self.refused["no-such-request"] += 1
            return web.Response(status=refused.status, text=refused.reason)
        except (ValueError, *_BROKEN) as error:
            return web.Response(status=400, text=str(error))
        except Exception as error:  # it is sent to the program and raised there
            _LOG.exception("a request of a program could not be answered")
            return web.Response(status=500, text=f"{type(error).__name__}: {error}")
        finally:
            program.requests.discard(task)

    def _identify(self, request: web.Request) -> tuple[Claims, ConnectedProgram]:
        """Return the claims of a request's key, and its program."""
        claims = self._keys.check(request.headers.get("Authorization", "").removeprefix("Bearer "))
        program = self._programs.get(claims.attempt_id)
        if program is None:
            raise RequestRefused(
                409, "attempt-ended", f"attempt {claims.attempt_id} has ended", claims=claims
            )
        return claims, program

    async def _begin(self, request: web.Request) -> web.Response:
        _, program = self._identify(request)
        if program.begin is None:
            raise entry_refused(
                "entries have no rollouts of their own here: start the program with --per-entry"
            )
        begun = await program.begin(messages.decode(await read(request, BODY_LIMIT), BeginEntry))
        return web.Response(body=messages.encode(begun), content_type=messages.CONTENT_TYPE)

    async def _end(self, request: web.Request) -> web.Response:
        claims, program = self._identify(request)
        if program.end is None or claims.attempt_id != request.match_info["attempt_id"]:
            raise entry_refused(f"the key is that of attempt {claims.attempt_id}, and ends no other")
        await program.end(claims.attempt_id, messages.decode(await read(request, BODY_LIMIT), EndEntry))
        return web.Response()

    # ---------------------------------------------------------------------------------------------- spans
    async def _traces(self, request: web.Request) -> web.Response:
        """Store spans as the parts of the body arrive."""
        claims, program = self._identify(request)
        parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        storing = asyncio.create_task(self._store_parts(parts, claims, program))
        task, body = asyncio.current_task(), asyncio.get_running_loop().create_future()
        assert task is not None
        program.reading[body] = task
        try:
            program.refused["broken-off"] += not await _read_parts(request, parts)
        finally:
            body.set_result(None)
            del program.reading[body]
            parts.put_nowait(None)
            refused = await storing
        answer = otlp.answer(otlp.PROTOBUF, sum(refused.values()), traces.reasons_text(refused))
        return web.Response(body=answer, content_type=otlp.PROTOBUF)

    async def _event(self, request: web.Request) -> web.Response:
        """Store what a program for Agent Lightning 1.0 posts."""
        claims, program = self._identify(request)
        try:
            body = await read(request, events.BODY_LIMIT)
            self._quota.take(claims, len(body))
            span, answer = events.read_event(body, claims, dict(request.match_info))
        except RequestRefused as error:
            program.refused[error.reason] += 1
            raise
        refused = await traces.store_spans(self._store, [span], claims, 0)
        program.refused.update({reason or "late-span": n for (reason, _), n in refused.items()})
        if refused:
            return web.Response(status=409, text=traces.reasons_text(refused))
        return web.Response(body=answer, content_type="application/json")

    async def _store_parts(
        self, parts: asyncio.Queue[bytes | None], claims: Claims, program: ConnectedProgram
    ) -> traces.RefusalCounts:
        """Store the parts, waiting parts in one commit, and return the counts of refused spans."""
        refused = traces.RefusalCounts()
        part = await parts.get()
        while part is not None:
            waiting = [part]
            while not parts.empty() and (part := parts.get_nowait()) is not None:
                waiting.append(part)
            refused += await self._store_spans(b"".join(waiting), claims, program)
            part = part if part is None else await parts.get()
        return refused

    async def _store_spans(
        self, body: bytes, claims: Claims, program: ConnectedProgram
    ) -> traces.RefusalCounts:
        try:
            self._quota.take(claims, len(body))
        except RequestRefused as error:
            program.refused[error.reason] += 1
            return traces.RefusalCounts({(error.reason, str(error)): 1})
        try:
            spans, damaged, reports = await decoded(body, _read_spans, _SMALL)
            program.reports |= {report.process: report for report in reports}
            refused = await traces.store_spans(self._store, spans, claims, damaged)
        except otlp.Undecodable as error:
            _LOG.warning("the spans of a program cannot be decoded: %s", error)
            refused = traces.RefusalCounts({("undecodable", str(error)): 1})
        except RequestRefused as error:
            _LOG.error("spans of a program cannot be stored: %s", error)
            refused = traces.RefusalCounts({("unstored-span", str(error)): len(spans)})
        program.refused.update({reason or "late-span": n for (reason, _), n in refused.items()})
        return refused


async def _read_parts(request: web.Request, parts: asyncio.Queue[bytes | None]) -> bool:
    """Read the body until it or its process ends. Return ``False`` if the last part is incomplete."""
    part = bytearray()
    try:
        # Read without a pause: data that is unread when the connection ends is lost.
        async for data, ended in request.content.iter_chunks():
            part += data
            if len(part) > BODY_LIMIT:
                raise too_large(BODY_LIMIT)
            if ended and part:
                parts.put_nowait(bytes(part))
                part.clear()
    except _BROKEN:
        return not part
    parts.put_nowait(bytes(part))  # a body without chunks
    return True


def _read_spans(body: bytes) -> tuple[list[Span], int, list[ProcessReport]]:
    """Return the spans, the number of damaged spans and reports, and the reports."""
    exported, damaged = otlp.decode(body, otlp.PROTOBUF)
    reports: list[ProcessReport] = []
    for one in exported:
        about = {} if one.spans else otlp.attributes(one.resource.attributes)
        if messages.PROCESS in about:
            try:
                reports.append(msgspec.convert(about[messages.PROCESS], ProcessReport))
            except msgspec.ValidationError:
                damaged += 1
    return list(otlp.spans(exported)), damaged, reports


async def _healthy(_: web.Request) -> web.Response:
    return web.Response()
