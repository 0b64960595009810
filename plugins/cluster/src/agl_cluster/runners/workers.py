"""Worker processes. Each runs the agent on one attempt at a time and is killed when the attempt's time is up.

Runner and worker exchange messages in the encoding of the store's records: each value that a store can hold
can be sent, and reading a message runs no code of the agent. Spans are sent to the runner as they end, so a
killed worker loses no ended span. A thread for each worker reads them, so a worker that stalls blocks no
event loop.

Invariants: an idle worker can run the next attempt; one that was cancelled, died or sent an unreadable
message is killed with all processes that it started, and a new worker is started when it is needed. A worker
ends with its runner; a process that the agent forks cannot write into its connection; of the run's secrets,
it has only the keys of its attempts.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import msgspec
import psutil

from agentlightning import capture
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.records import admit
from agentlightning.plugins.manager import load
from agentlightning.runner.agent import HostedAgent, execute, instrumentors
from agentlightning.runner.execution import RunInWorker
from agentlightning.runner.outcome import CannotRun, Outcome, outcome_of_error
from agentlightning.runner.settings import RunnerSection
from agentlightning.runner.threads import in_thread, start_thread
from agentlightning.store import codec
from agentlightning.types import AttemptStatus, Resource, Rollout, Span
from agl_cluster.process_tree import (
    adopt_orphans,
    describe_exit,
    enter,
    kill_group,
    kill_tree,
    spawn,
)

log = logging.getLogger(__name__)
LARGEST = 1 << 30
"""Largest message in bytes."""
LOAD_SECONDS = 120.0
"""Seconds a worker has to import the agent."""
POLL_SECONDS = 0.5
"""Seconds between two checks whether a silent worker has ended: a process that it forked may hold its
connection open.
"""


# ---------------------------------------------------------------------------------------------- messages
class LoadAgent(msgspec.Struct, tag=True):
    """To the worker, first: the agent, pickled, and the adapters to activate."""

    agent: bytes
    adapters: list[str]


class RunAttempt(msgspec.Struct, tag=True):
    """To the worker: run the agent on this rollout, in the attempt's context, whose fields the others are."""

    rollout: Rollout
    attempt_id: str
    key: str | None
    gateway: str | None
    policies: dict[str, str]
    resources: dict[str, Resource]


class AgentLoaded(msgspec.Struct, tag=True):
    """From the worker: it can run attempts, or ``error`` says why not."""

    error: str | None = None


class SpanMessage(msgspec.Struct, tag=True):
    """From the worker: a span of the attempt has ended."""

    attempt_id: str
    span: Span


class AttemptDone(msgspec.Struct, tag=True):
    """From the worker: the agent has ended. ``counts`` (of the runner) and ``capture`` are the counts since
    the last attempt.
    """

    outcome: Outcome
    counts: dict[str, int]
    capture: dict[str, int]


ToWorker = LoadAgent | RunAttempt
FromWorker = AgentLoaded | SpanMessage | AttemptDone


def pack(message: ToWorker | FromWorker) -> bytes:
    """Encode a message. Raise ``TypeError`` or ``ValueError`` if a value has no encoding."""
    return codec.pack(message, small=LARGEST)  # within one machine it does not pay to compress


# --------------------------------------------------------------------------------- in the runner's process
class WorkerPool:
    """At most ``settings.concurrency`` workers for one agent. Counts of the workers, ``killed`` and ``died``
    are added to ``counts``. Raises :class:`.CannotRun` if the agent cannot be sent to another process.
    """

    def __init__(self, agent: HostedAgent, settings: RunnerSection, counts: Counter[str]) -> None:
        self._agent = LoadAgent(_pickled(agent), settings.adapters)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._counts = counts
        self._idle: list[WorkerHandle] = []
        self._busy: set[WorkerHandle] = set()

    async def start(self) -> None:
        """Start the first worker, so that an agent that cannot be imported is found before a lease."""
        async with self.worker():
            pass

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[RunInWorker]:
        """Have a worker within the block: an idle one, the one that worked last first, or a new one. It is
        kept for the next attempt, unless it died or is being killed.
        """
        async with self._slots:
            while self._idle:
                worker = self._idle.pop()
                if worker.usable:
                    break
            else:
                worker = await WorkerHandle.start(self._agent)
            self._busy.add(worker)
            try:
                yield partial(self._run, worker)
            finally:  # also if it is cancelled again while the agent is being stopped
                self._busy.discard(worker)
                if worker.usable:
                    self._idle.append(worker)

    async def _run(self, worker: WorkerHandle, rollout: Rollout, context: AttemptContext) -> Outcome:
        """Run one attempt on a worker. Cancellation kills the worker."""
        try:
            done = await worker.run(rollout, context)
        except asyncio.CancelledError:
            self._counts["killed"] += 1
            raise
        if isinstance(done, AttemptDone):
            self._counts.update(done.counts)
            for reason, times in done.capture.items():
                COUNTS.add(reason, times)
            return done.outcome
        self._counts["died"] += 1
        await worker.close()
        return Outcome(AttemptStatus.FAILED, f"agent-raised: the worker process {done}")

    async def close(self) -> None:
        """End all workers."""
        workers, self._idle = [*self._idle, *self._busy], []
        await asyncio.gather(*(worker.close() for worker in workers))


def _pickled(agent: HostedAgent) -> bytes:
    try:
        data = pickle.dumps(agent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(agent.agent, "name", type(agent.agent).__name__)
        raise CannotRun(
            f"isolation='process' sends the agent {name!r} to another process, which must be able to import "
            f"it: {error}. Define it at the top level of a module (no lambda, no function or class inside "
            "another, no open connection or lock as an attribute), or use isolation='inline'"
        ) from None
    main: Any = sys.modules["__main__"]
    if b"__main__" in data and not (getattr(main, "__spec__", None) or getattr(main, "__file__", None)):
        raise CannotRun(
            "isolation='process': the agent was defined in __main__ without a file (a notebook, a prompt, "
            "python -c), which another process cannot import: put it into a module, or use isolation='inline'"
        )
    return data


class WorkerHandle:
    """A worker process, as its runner sees it: runs attempts, one at a time. It belongs to the loop that made
    it. When ``died`` is resolved, every message of the worker has been handled, and its process group is
    killed.
    """

    def __init__(self, process: SpawnProcess, connection: Connection) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._connection = connection
        self._system = psutil.Process(process.pid)
        self._closing = False
        self.died: asyncio.Future[str] = self._loop.create_future()
        """How it died, once it has."""
        self._answer: asyncio.Future[AgentLoaded | AttemptDone] = self._loop.create_future()
        self._context: AttemptContext | None = None
        """Of the attempt that runs."""
        atexit.register(self.kill)  # multiprocessing would wait for it at exit
        threading.Thread(target=self._listen, name="agl-worker-listen", daemon=True).start()

    @classmethod
    async def start(cls, agent: LoadAgent) -> WorkerHandle:
        """Start a process and wait until it has imported the agent. Raise :class:`CannotRun` if it cannot."""
        try:
            process, connection = spawn(main, name="agl-worker")
        except (OSError, RuntimeError) as error:
            raise CannotRun(f"no worker process could be started: {error}") from error
        worker = cls(process, connection)
        try:
            loaded = await asyncio.wait_for(worker._ask(agent), LOAD_SECONDS)
        except TimeoutError:
            loaded = AgentLoaded(f"it took over {LOAD_SECONDS:g} s")
        except BaseException:
            await worker.close()
            raise
        if isinstance(loaded, AgentLoaded) and loaded.error is None:
            return worker
        await worker.close()
        if isinstance(loaded, AgentLoaded):
            raise CannotRun(f"a worker process could not load the agent: {loaded.error}")
        script = getattr(sys.modules["__main__"], "__file__", None) is not None
        put = 'put what it does under `if __name__ == "__main__":`'
        hint = f"; workers import the main script, so {put}" if script else ""
        raise CannotRun(f"a worker process could not load the agent: it {worker.died.result()}{hint}")

    async def run(self, rollout: Rollout, context: AttemptContext) -> AttemptDone | str:
        """Run one attempt and return its end, or a text that says how the worker died. Cancellation kills the
        worker; the spans that it had sent before have reached the context's sink then.
        """
        self._context = context
        try:
            done = await self._ask(
                RunAttempt(
                    rollout,
                    context.attempt_id,
                    context.key,
                    context.gateway,
                    context.policies,
                    context.resources,
                )
            )
            return done if isinstance(done, AttemptDone) else self.died.result()
        except BaseException:
            await self.close()
            raise
        finally:
            self._context = None

    @property
    def usable(self) -> bool:
        """Whether the process lives and waits for work."""
        return not self._closing and self._context is None and not self.died.done()

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

    async def _ask(self, message: ToWorker) -> AgentLoaded | AttemptDone | None:
        """Send a message and return the worker's answer, or ``None`` if it died without one."""
        self._answer = self._loop.create_future()
        # A large message waits until the worker reads it, which a worker that hangs never does.
        # An error means that the worker has died, which the listening thread finds.
        start_thread(self._connection.send_bytes, pack(message), name="agl-worker-send")
        either: set[asyncio.Future[Any]] = {self._answer, self.died}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return self._answer.result() if self._answer.done() else None

    def _listen(self) -> None:
        """Pass messages to the loop until the process has ended; in a thread of its own."""
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
                    data = self._connection.recv_bytes(LARGEST)
                elif self._process.exitcode is None:
                    continue
                else:
                    return
            except (EOFError, OSError):
                return
            try:
                message = codec.unpack(data, FromWorker)
            except (codec.Corrupt, msgspec.MsgspecError) as error:
                why = f"sent an unreadable message ({error}): killed"
                log.warning("worker process %d %s", self._system.pid, why)
                return
            self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, SpanMessage):
            if self._context is not None and self._context.attempt_id == message.attempt_id:
                self._context.sink(message.span)
            else:
                COUNTS.add("late-span")
        elif not self._answer.done():
            self._answer.set_result(message)

    def _set_died(self, how: str) -> None:
        if not self.died.done():
            self.died.set_result(how)


# --------------------------------------------------------------------------------- in the worker's process
def main(connection: Connection, runner: int) -> None:
    """Serve process ``runner``, which has the other end of the connection."""
    enter(connection, runner)
    adopt_orphans()
    worker = WorkerProcess(connection)
    wanted = worker.receive()
    if not isinstance(wanted, LoadAgent):
        return
    try:
        agent: HostedAgent = pickle.loads(wanted.agent)
        needed = instrumentors(load(), wanted.adapters)
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        worker.send(AgentLoaded(text + where))
        raise SystemExit(2) from None
    with agent.capturing(needed):
        worker.send(AgentLoaded())
        asyncio.run(worker.serve(agent))


class WorkerProcess:
    """The attempts that come over ``connection``. Any thread may send; a process that the agent forks may
    not.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._counted: Counter[str] = Counter()
        """The counts of capture when the last attempt ended."""

    def send(self, message: FromWorker) -> None:
        """Send a message to the runner."""
        if os.getpid() != self._pid:
            raise RuntimeError("a process that the agent forked cannot send: its spans are not recorded")
        data = pack(message)
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> LoadAgent | RunAttempt | None:
        """Return the next message, or ``None`` if the runner has ended."""
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError):
            return None
        message: LoadAgent | RunAttempt = codec.unpack(data, ToWorker)
        return message

    async def serve(self, agent: HostedAgent) -> None:
        """Run attempts with ``agent`` until the runner ends."""
        loop = asyncio.get_running_loop()
        wanted: asyncio.Queue[RunAttempt] = asyncio.Queue()

        def listen() -> None:
            while isinstance(message := self.receive(), RunAttempt):
                loop.call_soon_threadsafe(wanted.put_nowait, message)
            os.killpg(0, signal.SIGKILL)  # the runner has ended: so do all processes started here

        threading.Thread(target=listen, name="agl-listen", daemon=True).start()
        while True:
            await self._run(agent, await wanted.get())

    async def _run(self, agent: HostedAgent, given: RunAttempt) -> None:
        rollout, attempt_id = given.rollout, given.attempt_id

        def sink(span: Span) -> None:
            # an invalid record could not be sent either
            self.send(SpanMessage(attempt_id, admit(span, rollout.rollout_id, attempt_id)))

        context = AttemptContext(
            rollout.rollout_id,
            attempt_id,
            sink,
            given.key,
            given.gateway,
            policies=given.policies,
            resources=given.resources,
            task=rollout.input,
        )
        counts: Counter[str] = Counter()
        try:
            outcome = await execute(agent, rollout, context, counts)
        except BaseException as error:  # it ends this attempt and not the worker
            outcome = outcome_of_error(error)
        if os.getpid() != self._pid:
            os._exit(0)  # the agent forked, and this is the copy
        capture.end_attempt(attempt_id)
        now = Counter(COUNTS.snapshot())
        captured, self._counted = dict(now - self._counted), now
        try:
            self.send(AttemptDone(outcome, dict(counts), captured))
        except (TypeError, ValueError) as error:  # a value has no encoding: a text with half a character, say
            self.send(AttemptDone(outcome_of_error(error), dict(counts), captured))
