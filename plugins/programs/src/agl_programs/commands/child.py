"""Runs the process of a command: its input from a file, its output read up to a limit.

Invariants: when :func:`run_child` returns or is cancelled, the process and its process group have ended, and
at most the limit of its output is in memory. The process leads a session of its own, so Ctrl-C at the
terminal does not reach it; its runner ends it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentlightning.capture.delivery import COUNTS
from agl_cluster.process_tree import kill_group
from agl_programs.process import terminate

CLOSE_SECONDS = 1.0
"""Seconds in which the output of an ended program has to be complete; a process that left the program's group
may hold it open for ever."""
_CHUNK = 1 << 16
_running: set[int] = set()
"""Process groups that run."""


@dataclass(frozen=True, slots=True)
class Output:
    """The end of one output stream, and the number of bytes before it that were not kept."""

    data: bytes
    dropped: int

    @property
    def text(self) -> str:
        """The kept bytes as text; bytes that are no UTF-8 are replaced."""
        return self.data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How the process ended. ``code``: its exit status, negative for a signal."""

    code: int
    stdout: Output
    stderr: Output


async def run_child(
    words: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    stdin: str | None,
    limit: int,
    pass_fds: Sequence[int] = (),
) -> ChildEnd:
    """Run a command in ``folder`` to its end, and keep the last ``limit`` bytes of each output stream.
    ``pass_fds``: descriptors that it gets. Raise ``OSError`` or ``ValueError`` if it cannot be executed.
    Cancellation terminates its process group: SIGTERM, then SIGKILL.
    """
    stdout, stderr = _Tail(limit), _Tail(limit)
    try:
        with tempfile.TemporaryFile() as given:
            given.write((stdin or "").encode(errors="surrogatepass"))
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=given,
                stdout=stdout.writer,
                stderr=stderr.writer,
                env=dict(variables),
                cwd=folder,
                start_new_session=True,
                pass_fds=pass_fds,
            )
    except BaseException:
        stdout.close()
        stderr.close()
        raise
    _running.add(process.pid)
    os.close(stdout.writer)
    os.close(stderr.writer)
    reading = [asyncio.create_task(tail.read()) for tail in (stdout, stderr)]
    try:
        code = await process.wait()
        kill_group(process.pid)
        _, late = await asyncio.wait(reading, timeout=CLOSE_SECONDS)
        if late:
            COUNTS.add("process-left-behind")
    except asyncio.CancelledError:
        await terminate(process, group=True)
        raise
    finally:
        _running.discard(process.pid)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return ChildEnd(code, stdout.output, stderr.output)


class _Tail:
    """A pipe of which the last ``limit`` bytes are kept."""

    def __init__(self, limit: int) -> None:
        self._limit, self._data, self._dropped = limit, bytearray(), 0
        self._reader, self.writer = os.pipe()
        """``writer``: the end for the process."""

    async def read(self) -> None:
        """Read to the end of the stream."""
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(self._reader, "rb", 0)
        )
        try:
            while chunk := await stream.read(_CHUNK):
                self._data += chunk
                if len(self._data) > self._limit + _CHUNK:
                    self._cut()
        finally:
            self._cut()
            transport.close()

    def close(self) -> None:
        """Close both ends of a pipe that no process has."""
        os.close(self._reader)
        os.close(self.writer)

    @property
    def output(self) -> Output:
        """What was kept."""
        return Output(bytes(self._data), self._dropped)

    def _cut(self) -> None:
        over = len(self._data) - self._limit
        if over > 0:
            del self._data[:over]
            self._dropped += over


def _kill_running() -> None:
    for group in list(_running):
        kill_group(group)


atexit.register(_kill_running)  # a second Ctrl-C may end the interpreter before the runner has ended programs
