"""A worker process, as its runner sees it.

A thread for each worker reads its messages, so a worker that stalls blocks no event loop. Invariant: when
``died`` is resolved, every message of the worker has been handled, and its process group is killed.
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

from agentlightning.capture.delivery import COUNTS
from agentlightning.runner.event_loops.threads import in_thread, start_thread
from agentlightning.runner.outcomes.outcome import CannotRun
from agentlightning.runner.processes import messages, worker
from agentlightning.runner.processes.messages import AgentLoaded, AttemptDone, AttemptJob, LoadAgent
from agentlightning.runner.processes.process_tree import describe_exit, kill_group, kill_tree, spawn
from agentlightning.types import Span

log = logging.getLogger(__name__)
LOAD_SECONDS = 120.0
"""Seconds a worker has to import the agent."""
POLL_SECONDS = 0.5
"""Seconds between two checks whether a silent worker has ended: a process that it forked may hold its
connection open.
"""
Sink = Callable[[Span], None]


class WorkerHandle:
    """Runs attempts in one worker process, one at a time. It belongs to the loop that made it."""

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
        """Start a process and wait until it has imported the agent. Raise :class:`CannotRun` if it cannot."""
        try:
            process, connection = spawn(worker.main, name="agl-worker")
        except (OSError, RuntimeError) as error:
            raise CannotRun(f"no worker process could be started: {error}") from error
        handle = cls(process, connection)
        try:
            loaded = await asyncio.wait_for(handle._ask(agent), LOAD_SECONDS)
        except TimeoutError:
            loaded = AgentLoaded(f"it took over {LOAD_SECONDS:g} s")
        except BaseException:
            await handle.close()
            raise
        if isinstance(loaded, AgentLoaded) and loaded.error is None:
            return handle
        await handle.close()
        why = loaded.error if isinstance(loaded, AgentLoaded) else f"it {handle.died.result()}{_hint()}"
        raise CannotRun(f"a worker process could not load the agent: {why}")

    async def run(self, job: AttemptJob, sink: Sink) -> AttemptDone | str:
        """Run one attempt and return its end, or a text that says how the worker died. Cancellation kills the
        worker; the spans that it had sent before have reached ``sink`` then.
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
        """Whether the process lives and waits for work."""
        return not self._closing and self._sink is None and not self.died.done()

    async def close(self) -> None:
        """Kill the process and all processes that it started, and wait until its messages are handled."""
        self._closing = True
        if not self.died.done():
            await in_thread(self.kill, name="agl-worker-kill")  # it looks at every process of the machine
            await asyncio.wait({self.died})

    def kill(self) -> None:
        """Kill the process and all processes that it started, unless it has ended."""
        if self._system.is_running():
            kill_tree(self._system.pid)

    async def _ask(self, message: messages.ToWorker) -> AgentLoaded | AttemptDone | None:
        """Send a message and return the worker's answer, or ``None`` if it died without one."""
        self._answer = self._loop.create_future()
        data = messages.pack(message)
        # A large message waits until the worker reads it, which a worker that hangs never does.
        # An error means that the worker has died, which the listening thread finds.
        start_thread(self._connection.send_bytes, data, name="agl-worker-send")
        either: set[asyncio.Future[Any]] = {self._answer, self.died}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self._answer.result() if self._answer.done() else None

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
        """Pass messages to the loop until the connection or the process ends."""
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
                log.warning(
                    "worker process %d sent an unreadable message (%s): killed", self._system.pid, error
                )
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
