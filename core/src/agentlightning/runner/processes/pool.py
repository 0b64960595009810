"""Warm worker processes, one attempt at a time each, killed when their attempt's time is up.

Invariant: a worker that is given back can run the next attempt; one that was cancelled, died or said nonsense
is killed with everything it started, and another takes its place when it is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from agentlightning.capture.counts import COUNTS
from agentlightning.decorator.agents import LitAgent
from agentlightning.runner.attempt_keys import CannotRun
from agentlightning.runner.execute import AttemptResult
from agentlightning.runner.outcomes.outcome import Outcome
from agentlightning.runner.processes.messages import (
    HEAD,
    LARGEST,
    AttemptDone,
    AttemptJob,
    FromWorker,
    SpanMessage,
    WorkerReady,
    WorkerSetup,
    packed,
    unpacked,
)
from agentlightning.runner.processes.portable import pickled, preparation
from agentlightning.runner.processes.process_tree import describe_exit, kill_group, kill_tree
from agentlightning.types import AttemptStatus, Span

log = logging.getLogger(__name__)
START_LIMIT = 120.0
"""Seconds a worker has to import the agent."""
LAST_WORDS = 1.0
"""Seconds in which what a dead worker had sent is read."""
SECRETS = ("AGL_SECRET", "AGL_TOKEN", "AGL_SEAL_KEY")
"""Environment variables that workers, which run the agent's code, are not given."""
Sink = Callable[[Span], None]


class WorkerHandle:
    """A worker process, as its runner sees it."""

    def __init__(self, process: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._alive = True
        self._closing = False
        self.died: asyncio.Future[str] = loop.create_future()
        """How it died, once it has."""
        self._answer: asyncio.Future[WorkerReady | AttemptDone] = loop.create_future()
        self._sink: tuple[str, Sink] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, setup: WorkerSetup) -> WorkerHandle:
        """Start a process and wait until it has imported the agent; :class:`CannotRun` says why not."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "agentlightning.runner.processes.worker", str(theirs.fileno())]
        environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            ours.close()
            raise CannotRun(f"no worker process could be started: {error}") from error
        finally:
            theirs.close()
        child = cls(process, loop)
        threading.Thread(target=child._watch, args=(loop,), name="agl-worker-watch", daemon=True).start()
        try:
            reader, child._writer = await asyncio.open_connection(sock=ours)
            child._reading = asyncio.create_task(child._read(reader))
            child._writer.write(packed(setup))
            ready = await asyncio.wait_for(child._await_answer(), START_LIMIT)
        except BaseException as error:
            await child.close()
            if isinstance(error, TimeoutError):
                raise CannotRun(f"a worker process took over {START_LIMIT:g} s to import the agent") from None
            raise
        if not isinstance(ready, WorkerReady) or ready.error is not None:
            await child.close()
            why = ready.error if isinstance(ready, WorkerReady) else "it " + child.died.result()
            raise CannotRun(f"a worker process could not load the agent: {why}")
        return child

    async def run(self, job: AttemptJob, sink: Sink) -> AttemptDone | str:
        """Run one attempt; the text says how the worker died instead. Cancelled: the worker is killed, and
        what it had sent before has reached ``sink``.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._sink = job.attempt_id, sink
        assert self._writer is not None
        try:
            self._writer.write(packed(job))
            answer = await self._await_answer()
            return answer if isinstance(answer, AttemptDone) else self.died.result()
        except BaseException:
            await self.close()
            raise
        finally:
            self._sink = None

    @property
    def usable(self) -> bool:
        """It lives and waits for work."""
        return self._alive and not self._closing and self._sink is None and not self.died.done()

    @property
    def closed(self) -> bool:
        """Nothing of it is left to close."""
        return self._closing

    async def close(self) -> None:
        """Kill the process and all it started; read what it had sent."""
        self._closing = True
        with self._lock:
            if self._alive:
                kill_tree(self._process.pid)
        await asyncio.wait({self.died})
        await self._last_words()
        if self._writer is not None:
            self._writer.close()

    async def _await_answer(self) -> WorkerReady | AttemptDone | None:
        """The worker's answer; ``None``: it died without one."""
        either: set[asyncio.Future[Any]] = {self._answer, self.died}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._answer.done():
            await self._last_words()
        return self._answer.result() if self._answer.done() else None

    async def _last_words(self) -> None:
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=LAST_WORDS)
            self._reading.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Take frames until the worker is gone; nonsense ends it."""
        try:
            while True:
                (length,) = HEAD.unpack(await reader.readexactly(HEAD.size))
                if length > LARGEST:
                    raise ValueError(f"a frame of {length} bytes")
                self._take(unpacked(await reader.readexactly(length), FromWorker))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except ValueError as error:
            log.warning("worker process %d sent what is no frame (%s): killed", self._process.pid, error)
            with self._lock:
                if self._alive:
                    kill_tree(self._process.pid)

    def _take(self, frame: WorkerReady | SpanMessage | AttemptDone) -> None:
        if isinstance(frame, SpanMessage):
            if self._sink is not None and self._sink[0] == frame.attempt_id:
                self._sink[1](frame.span)
            else:
                COUNTS.add("late-span")
        elif not self._answer.done():
            self._answer.set_result(frame)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the process's end, in a thread. Its group is killed before its id can be another's."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            if not hasattr(os, "waitid"):
                self._process.wait()
            self._alive = False
            kill_group(self._process.pid)
            code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(self._told, describe_exit(code))

    def _told(self, how: str) -> None:
        if not self.died.done():
            self.died.set_result(how)


class WorkerPool:
    """At most ``size`` workers for one agent. ``counts``: ``killed``, ``died``, and what workers counted."""

    def __init__(
        self, agent: LitAgent[Any], *, size: int, adapters: Sequence[str], counts: Counter[str]
    ) -> None:
        if os.name != "posix":
            raise CannotRun("isolation='process' needs process groups, which this system lacks; use 'inline'")
        data = pickled(agent)
        self._setup = WorkerSetup(data, preparation(data), list(adapters), os.getpid())
        self._slots = asyncio.Semaphore(size)
        self._counts = counts
        self._idle: list[WorkerHandle] = []
        self._busy: set[WorkerHandle] = set()

    async def start(self) -> None:
        """Start the first worker: an agent that cannot be imported is known before anything is leased."""
        self.give(await self.take())

    async def take(self) -> WorkerHandle:
        """A worker that waits for work, the one that worked last first."""
        await self._slots.acquire()
        try:
            while self._idle:
                child = self._idle.pop()
                if child.usable:
                    break
                await child.close()
            else:
                child = await WorkerHandle.start(self._setup)
        except BaseException:
            self._slots.release()
            raise
        self._busy.add(child)
        return child

    def give(self, child: WorkerHandle) -> None:
        """Take a worker back."""
        self._busy.discard(child)
        if not child.closed:  # one that died after its work is closed by who finds it
            self._idle.append(child)
        self._slots.release()

    async def run(self, child: WorkerHandle, job: AttemptJob, sink: Sink) -> AttemptResult:
        """Run one attempt on a worker that was taken. Cancelled: the worker is killed, counted."""
        try:
            done = await child.run(job, sink)
        except asyncio.CancelledError:
            self._counts["killed"] += 1
            raise
        if isinstance(done, AttemptDone):
            self._counts.update(done.counts)
            for reason, times in done.capture.items():
                COUNTS.add(reason, times)
            return done.ended
        self._counts["died"] += 1
        await child.close()
        return AttemptResult(Outcome(AttemptStatus.FAILED, f"agent-raised: the worker process {done}"))

    async def close(self) -> None:
        """End all workers."""
        children, self._idle = [*self._idle, *self._busy], []
        await asyncio.gather(*(child.close() for child in children))
