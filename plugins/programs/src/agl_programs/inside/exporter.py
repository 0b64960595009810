"""Sends what a process of a program records to ``agl run``: OTLP over HTTP, under the attempt's key.

The spans of an attempt are the body of one long request, which is written as spans end and stored as it
arrives. So no span waits for the end of the process or for an answer, and written spans are stored even if
the process is killed. Invariants: sending is safe from any thread, from ``__del__`` and after a fork, and
never raises into the program; spans arrive in the order in which they ended; spans that could not be sent are
counted and reported.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, deque

import msgspec

from agentlightning.capture.delivery import COUNTS, after_fork_in_child
from agentlightning.types import Span
from agl_programs.inside import messages, otlp
from agl_programs.inside.connection import Connection, Headers
from agl_programs.inside.import_hook import warn
from agl_programs.inside.messages import BeginEntry, EndEntry, EntryBegun, ProcessReport

REPLY_SECONDS = 60.0
"""Seconds that ``agl run`` may take to store the last spans, and to begin or end an entry's attempt."""
UNDELIVERED = "undelivered"


class SpanExporter:
    """Exports to the server at ``url``. ``key``: the key of the process's own attempt."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url, key
        self._streams: dict[str, Connection] = {}
        """Attempt's key → the request that carries its spans."""
        self._adapters: dict[str, str | None] = {}
        self._warned = False
        self._begin()
        after_fork_in_child(self._begin)

    def _begin(self) -> None:
        """Begin empty. A forked process closes its copies of the parent's connections."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._lock = threading.RLock()
        self._busy = False
        """The thread that holds the lock is sending."""
        self._queue: deque[tuple[str, bytes]] = deque()
        """Key and encoded span."""
        self._report_due = True
        self._process = secrets.token_hex(8)
        self._inherited = Counter(COUNTS.snapshot())
        """Counts that the parent process reports."""

    # ---------------------------------------------------------------------------------------- content
    def span(self, key: str, span: Span) -> None:
        """Send a finished span of the attempt with this key."""
        try:
            encoded = otlp.export_request([span])
        except Exception:  # half a character, an id that is not hexadecimal
            COUNTS.add("unencodable")
            return
        self._queue.append((key, encoded))
        self._send()

    def adapter(self, name: str, error: str | None = None) -> None:
        """Report that an adapter is on, or why it is not."""
        self._adapters[name] = error
        self.report()

    def report(self) -> None:
        """Send the state of capture in this process."""
        self._report_due = True
        self._send()

    def begin_entry(self, entry: BeginEntry) -> EntryBegun:
        """Begin a rollout for an entry. Raise ``OSError`` without an answer, ``ValueError`` for a refusal."""
        return messages.decode(self._ask(messages.ENTRIES, entry, self._key), EntryBegun)

    def end_entry(self, attempt_id: str, key: str, end: EndEntry) -> None:
        """End an entry's attempt once its spans are stored. Errors are those of :meth:`begin_entry`."""
        self._finish(key)
        self._ask(messages.END.format(attempt_id=attempt_id), end, key)

    def flush(self) -> None:
        """Wait until everything is stored, at the end of the process."""
        for key in list(self._streams):
            self._finish(key)

    # --------------------------------------------------------------------------------------------- sending
    def _send(self) -> None:
        """Write the queue, unless this thread does so already: then a destructor or a signal handler called,
        and the span is written there.
        """
        with self._lock:
            if not self._busy:
                self._write_queue()

    def _write_queue(self) -> None:
        self._busy = True
        try:
            while self._queue:
                item = self._queue[0]
                if not self._written(*item):
                    COUNTS.add(UNDELIVERED)
                if self._queue and self._queue[0] is item:  # a fork empties the queue
                    self._queue.popleft()  # only here: a span that is interrupted (Ctrl-C) is written again
            if self._report_due:
                counts = dict(Counter(COUNTS.snapshot()) - self._inherited)
                report = msgspec.to_builtins(ProcessReport(self._process, counts, self._adapters))
                self._report_due = False
                written = self._written(self._key, otlp.resource_report(messages.PROCESS, report))
                self._report_due = not written
        finally:
            self._busy = False

    def _written(self, key: str, encoded: bytes) -> bool:
        for _ in range(2):  # a connection that broke is made again, once
            try:
                self._stream(key).chunk(encoded)
                return True
            except OSError as error:
                why = error
        self._warn(f"agl run cannot be reached ({why})")
        return False

    def _stream(self, key: str) -> Connection:
        """Return the open request for the key. Begin one if there is none or if it has ended."""
        stream = self._streams.setdefault(key, Connection(self._url))
        if stream.open and stream.answered():
            self._check(stream)
        if not stream.open:
            stream.begin(otlp.PATH, _headers(key, otlp.CONTENT_TYPE))
        return stream

    def _check(self, stream: Connection) -> None:
        """Read the answer to a request, which ends it."""
        status, answer = stream.answer(REPLY_SECONDS)
        stream.close()
        if status != 200:
            COUNTS.add(UNDELIVERED)
            self._warn(f"agl run refuses spans: {answer.decode(errors='replace')[:200]}")

    def _finish(self, key: str) -> None:
        """End the key's request and wait for its answer: its spans are on file then."""
        with self._lock:
            if self._busy:
                raise BlockingIOError("an entry ended while a span was being sent")
            self._write_queue()
            stream = self._streams.pop(key, None)
            if stream is None or not stream.open:
                return
            self._busy = True
            try:
                stream.chunk(b"")
                self._check(stream)
            except OSError as error:
                self._warn(f"agl run does not say what it stored ({error})")
            finally:
                self._busy = False

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warn(f"{why}: what the program records meanwhile may be lost")

    def _ask(self, path: str, message: BeginEntry | EndEntry, key: str) -> bytes:
        body, connection = messages.encode(message), Connection(self._url)
        connection.begin(path, _headers(key, messages.CONTENT_TYPE))
        connection.chunk(body)
        connection.chunk(b"")
        status, answer = connection.answer(REPLY_SECONDS)
        connection.close()
        if status != 200:
            raise ValueError(answer.decode(errors="replace"))
        return answer


def _headers(key: str, content_type: str) -> Headers:
    return {"Authorization": f"Bearer {key}", "Content-Type": content_type}
