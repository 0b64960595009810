"""Runs one command in a sandbox to its end.

Invariant: when :func:`run` returns, raises or is cancelled, no process of the sandbox is left. The first
process of its namespace is killed by a descriptor that can name no other process, and is waited for; the
kernel ends all others of a namespace with its first. If this process dies, bubblewrap dies with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agentlightning.runner.threads import in_thread
from agl_programs.commands.child import ChildEnd, run_child
from agl_programs.sandbox import bubblewrap, watch
from agl_programs.sandbox.filter import program
from agl_programs.sandbox.settings import SandboxSection

Door = Callable[[socket.socket], Awaitable[None]]
"""Serves on a socket that listens inside the sandbox."""
_ENDED_BY = {int(signal.SIGXCPU): watch.CPU, int(signal.SIGXFSZ): watch.DISK}
_EXIT_OF_SIGNAL = 128


class NotStarted(RuntimeError):
    """A sandbox that was not made, so that its command never ran: it has no result."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command in a sandbox ended. ``why``: the limit that ended it (``seconds``, ``cpu``, ``memory``,
    ``processes``, ``disk``), empty if it ended by itself. ``cpu_seconds`` and ``peak``: processor time and
    the most memory that were seen.
    """

    child: ChildEnd
    why: str
    cpu_seconds: float
    peak: int


@dataclass
class _Pipes:
    """The descriptors of one start, closed at its end."""

    given: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)

    def data(self, content: bytes) -> int:
        """A file that bubblewrap reads."""
        file = os.memfd_create("agl-sandbox")
        self.given.append(file)
        os.write(file, content)
        os.lseek(file, 0, os.SEEK_SET)
        return file

    def close(self) -> None:
        for file in (*self.given, *self.own):
            os.close(file)
        self.given, self.own = [], []


@contextlib.contextmanager
def _pipes() -> Iterator[_Pipes]:
    made = _Pipes()
    try:
        yield made
    finally:
        made.close()


async def run(
    section: SandboxSection,
    words: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    user: int | None,
    *,
    stdin: str | None = None,
    output_bytes: int,
    doors: Mapping[int, Door] | None = None,
    read: Sequence[str] = (),
    places: Mapping[str, str] | None = None,
    tmp: Path | None = None,
) -> Ended:
    """Run ``words`` in ``folder`` with no other ``variables``. ``user``: the folder's owner
    (:func:`.bubblewrap.new_user`). ``read``: files and folders that it may read beside the system.
    ``doors``: port on the sandbox's loopback → who serves it. ``places``: those of :class:`.Sandbox`.
    ``tmp``: the folder of its ``/tmp``, which counts as ``folder`` does; none: a ``/tmp`` in memory. Raise
    :class:`.UsageError` if this machine cannot make a sandbox, :class:`NotStarted` if this one was not made.
    """
    bubblewrap.check()
    ports = [] if section.network else list(doors or {})
    with _pipes() as pipes:
        owner = user if user is not None else os.getuid() or 1000
        made = bubblewrap.data(owner, network=section.network)
        files = {path: pipes.data(content) for path, content in made.items()}
        told, tell = os.pipe()
        ours, theirs = socket.socketpair()
        pipes.own += [told, ours.detach()]
        control = theirs.detach()
        pipes.given += [tell, control]
        command = bubblewrap.words(
            section, words, folder=folder, user=user, files=files, filter_fd=pipes.data(program()),
            info_fd=tell, control_fd=control, ports=ports, read=read, places=places or {}, tmp=tmp,
        )  # fmt: skip
        started = run_child(command, variables, folder, stdin, output_bytes, pass_fds=tuple(pipes.given))
        child = asyncio.create_task(started)
        given = len((stdin or "").encode(errors="surrogatepass"))
        seen = watch.Watch(section, 0, folder, tmp, given)
        return await _supervised(section, child, seen, pipes.own, doors or {} if ports else {})


async def _supervised(
    section: SandboxSection,
    child: asyncio.Task[ChildEnd],
    seen: watch.Watch,
    own: Sequence[int],
    doors: Mapping[int, Door],
) -> Ended:
    process: int | None = None
    why: str | None = None
    try:
        starting = asyncio.create_task(_first_process(own[0], child))
        try:
            await asyncio.wait([starting])
        finally:  # if the caller is cancelled now, there may be a process already
            number = await starting
            process = None if number is None else _opened(number)
        if number is not None:
            seen.process = number
            why = await _watched(section, child, seen, own[1], doors)
            if why is not None:
                _kill(process)
        end = await child
    finally:
        await _ended(process, child)
    if why is None:
        if not _stands(own[1]):
            said = end.stderr.text.strip()[-500:] or f"bubblewrap ended with status {end.code}"
            raise NotStarted(f"The sandbox did not start, so its command never ran: {said}")
        by_signal = _ENDED_BY.get(end.code - _EXIT_OF_SIGNAL)
        why = by_signal or await in_thread(partial(seen.over_disk, last=True)) or ""
    return Ended(as_signal(end), why, seen.cpu_seconds, seen.peak)


async def _ended(process: int | None, child: asyncio.Task[ChildEnd]) -> None:
    """Kill a namespace by its first process, and wait until it has no process. It goes on if the caller is
    cancelled.
    """
    _kill(process)
    if not child.done():
        child.cancel()
        await asyncio.gather(child, return_exceptions=True)
    if process is not None:
        await asyncio.shield(asyncio.create_task(_gone(process)))


def as_signal(end: ChildEnd) -> ChildEnd:
    """bubblewrap reports a signal as a shell does."""
    number = end.code - _EXIT_OF_SIGNAL
    known = number > 0 and number in {int(one) for one in signal.Signals}
    return ChildEnd(-number, end.stdout, end.stderr) if known else end


async def _first_process(told: int, child: asyncio.Task[ChildEnd]) -> int | None:
    """Wait for bubblewrap's report; ``None``: it ended before."""
    text = b""
    while True:
        readable = asyncio.create_task(_readable(told))
        await asyncio.wait([readable, child], return_when=asyncio.FIRST_COMPLETED)
        if not readable.done():
            readable.cancel()
            await asyncio.gather(readable, return_exceptions=True)
            return None
        text += os.read(told, 4096)
        with contextlib.suppress(ValueError):
            number: int = json.loads(text)["child-pid"]
            return number


async def _watched(
    section: SandboxSection,
    child: asyncio.Task[ChildEnd],
    seen: watch.Watch,
    control: int,
    doors: Mapping[int, Door],
) -> str | None:
    """Watch a sandbox until its command ends (``None``), or a limit is passed."""
    opening = asyncio.create_task(_open(control, doors)) if doors else None
    until = None if section.seconds is None else asyncio.get_running_loop().time() + section.seconds
    try:
        while True:
            await asyncio.wait([child], timeout=watch.INTERVAL)
            if child.done():
                return None
            if opening is not None and opening.done():
                opening.result()
            if until is not None and asyncio.get_running_loop().time() >= until:
                return watch.SECONDS
            # Until it stands, its first process sees all processes of this machine.
            if _stands(control) and (why := await in_thread(seen.over)) is not None:
                return why
    finally:
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)


async def _open(control: int, doors: Mapping[int, Door]) -> None:
    """Serve on the sockets that listen inside."""
    await _readable(control)
    with socket.socket(fileno=os.dup(control)) as asked:
        _, files, _, _ = socket.recv_fds(asked, 1, len(doors))
    for serve, file in zip(doors.values(), files, strict=True):
        door = socket.socket(fileno=file)
        door.setblocking(False)
        await serve(door)


def _stands(control: int) -> bool:
    """Whether inside.py has said so. Nobody reads its message, so it is there to the end."""
    return _is_readable(control)


def _is_readable(file: int) -> bool:
    looked = select.poll()
    looked.register(file, select.POLLIN)
    return bool(looked.poll(0))


async def _readable(file: int) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(file)


def _opened(number: int) -> int | None:
    try:
        return os.pidfd_open(number)
    except ProcessLookupError:
        return None


def _kill(process: int | None) -> None:
    if process is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)


async def _gone(process: int) -> None:
    try:
        if not _is_readable(process):
            await _readable(process)
    finally:
        os.close(process)
