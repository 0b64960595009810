"""A worker process, as its runner sees it: spawned by :mod:`multiprocessing`, reached over a connection.

A thread for each worker reads what it sends, so a worker that stalls holds up no event loop. Invariant: when
``died`` is resolved, every message that the worker sent has been handled, and its process group is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import psutil

from agentlightning.capture.counts import COUNTS
from agentlightning.runner.attempt_keys import CannotRun
from agentlightning.runner.event_loops.threads import in_thread
from agentlightning.runner.processes import messages, worker
from agentlightning.runner.processes.messages import AgentLoaded, AttemptDone, AttemptJob, LoadAgent
from agentlightning.runner.processes.process_tree import describe_exit, kill_group, kill_tree
from agentlightning.runner.processes.spawn import spawn
from agentlightning.types import Span

log = logging.getLogger(__name__)
LOAD_SECONDS = 120.0
"""Seconds a worker has to import the agent."""
POLL_SECONDS = 0.5
"""Seconds between two looks whether a silent worker has ended: what it forked may hold its connection."""
Sink = Callable[[Span], None]


class WorkerHandle:
    """Runs attempts in one worker process, one at a time. To be used from the loop that made it."""

    def __init__(self, process: SpawnProcess, connection: Connection) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._connection = connection
        self._system = psutil.Process(process.pid)
        self._closing = False
        self.died: asyncio.Future[str] = self._loop.create_future()
        """How it died, once it has."""
        self._answer: asyncio.Future[AgentLoaded | AttemptDone] = self._loop.create_future()
        self._sink: tuple[str, Sink] | None = None
        atexit.register(self.kill)  # multiprocessing would wait for it at exit
        threading.Thread(target=self._listen, name="agl-worker-listen", daemon=True).start()

    @classmethod
    async def start(cls, agent: LoadAgent) -> WorkerHandle:
        """Start a process and wait until it has imported the agent; :class:`CannotRun` says why not."""
        try:
            process, connection = spawn(worker.main, name="agl-worker")
        except (OSError, RuntimeError) as error:
            raise CannotRun(f"no worker process could be started: {error}") from error
        handle = cls(process, connection)
        try:
            loaded = await asyncio.wait_for(handle._ask(agent), LOAD_SECONDS)
        except BaseException as error:
            await handle.close()
            if isinstance(error, TimeoutError):
                raise CannotRun(
                    f"a worker process took over {LOAD_SECONDS:g} s to import the agent"
                ) from None
            raise
        if isinstance(loaded, AgentLoaded) and loaded.error is None:
            return handle
        await handle.close()
        why = loaded.error if isinstance(loaded, AgentLoaded) else f"it {handle.died.result()}{_hint()}"
        raise CannotRun(f"a worker process could not load the agent: {why}")

    async def run(self, job: AttemptJob, sink: Sink) -> AttemptDone | str:
        """Run one attempt; the text says how the worker died instead. Cancelled: the worker is killed, and
        what it had sent before has reached ``sink``.
        """
        self._sink = job.attempt_id, sink
        try:
            done = await self._ask(job)
            return done if isinstance(done, AttemptDone) else self.died.result()
        except BaseException:
            await self.close()
            raise
        finally:
            self._sink = None

    @property
    def usable(self) -> bool:
        """Whether it lives and waits for work."""
        return not self._closing and self._sink is None and not self.died.done()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closing

    async def close(self) -> None:
        """Kill the process and all it started; wait until what it had sent is handled."""
        self._closing = True
        if not self.died.done():
            await in_thread(self.kill, name="agl-worker-kill")  # it looks at every process of the machine
            await asyncio.wait({self.died})

    def kill(self) -> None:
        """Kill the process, unless it has ended, and all it started."""
        if self._system.is_running():
            kill_tree(self._system.pid)

    async def _ask(self, message: messages.ToWorker) -> AgentLoaded | AttemptDone | None:
        """Send a message; the worker's answer, or ``None`` if it died without one."""
        self._answer = self._loop.create_future()
        data = messages.pack(message)
        # A large message waits until the worker reads it, which a worker that hangs never does.
        threading.Thread(target=self._send, args=(data,), name="agl-worker-send", daemon=True).start()
        either: set[asyncio.Future[Any]] = {self._answer, self.died}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self._answer.result() if self._answer.done() else None

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it has died, which the listening thread finds
            self._connection.send_bytes(data)

    # ------------------------------------------------------------------------------ in the listening thread
    def _listen(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._receive()
        self.kill()  # it may live on without its connection
        self._process.join()
        kill_group(self._system.pid)
        while (code := self._process.exitcode) is None:  # another thread is about to write it
            time.sleep(0.01)
        self._process.close()
        self._connection.close()
        atexit.unregister(self.kill)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_died, describe_exit(code))

    def _receive(self) -> None:
        """Hand messages to the loop until the connection or the process ends."""
        while True:
            try:
                if self._connection.poll(POLL_SECONDS):
                    data = self._connection.recv_bytes(messages.LARGEST)
                elif self._process.exitcode is None:
                    continue
                else:
                    return
            except (EOFError, OSError):
                return
            try:
                message = messages.unpack(data, messages.FromWorker)
            except ValueError as error:
                log.warning("worker process %d sent what is no message (%s): killed", self._system.pid, error)
                return
            self._loop.call_soon_threadsafe(self._take, message)

    # ---------------------------------------------------------------------------------------- on the loop
    def _take(self, message: messages.FromWorker) -> None:
        if isinstance(message, messages.SpanMessage):
            if self._sink is not None and self._sink[0] == message.attempt_id:
                self._sink[1](message.span)
            else:
                COUNTS.add("late-span")
        elif not self._answer.done():
            self._answer.set_result(message)

    def _set_died(self, how: str) -> None:
        if not self.died.done():
            self.died.set_result(how)


def _hint() -> str:
    if getattr(sys.modules["__main__"], "__file__", None) is None:
        return ""
    return '; workers import the main script, so put what it does under `if __name__ == "__main__":`'
