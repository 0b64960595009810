"""A worker process: runs the agent on one attempt after another, for a runner that may kill it at any time.

Spans are sent to the runner as they end, so a killed worker loses no ended span. Invariants: the worker ends
with its runner; a process that the agent forks cannot write into its connection; of the run's secrets, it has
only the keys of its attempts.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import traceback
from collections import Counter
from multiprocessing.connection import Connection

from agentlightning import capture
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.records import admit
from agentlightning.plugins.manager import load
from agentlightning.runner.agent.adapters import instrumentors
from agentlightning.runner.agent.execute import execute
from agentlightning.runner.agent.hosted import HostedAgent
from agentlightning.runner.outcomes.outcome import outcome_of_error
from agentlightning.runner.processes import messages
from agentlightning.runner.processes.messages import AgentLoaded, AttemptDone, AttemptJob, LoadAgent
from agentlightning.runner.processes.process_tree import adopt_orphans, enter
from agentlightning.types import Span


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
        worker.send(AgentLoaded(_described(error)))
        raise SystemExit(2) from None
    with agent.capturing(needed):
        worker.send(AgentLoaded())
        asyncio.run(worker.serve(agent))


class WorkerProcess:
    """Runs the attempts that come over ``connection``. Any thread may send; a process that the agent forks
    may not.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._counted: Counter[str] = Counter()
        """The counts of capture when the last attempt ended."""

    def send(self, message: messages.FromWorker) -> None:
        """Send a message to the runner."""
        if os.getpid() != self._pid:
            raise RuntimeError("a process that the agent forked cannot send: its spans are not recorded")
        data = messages.pack(message)
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> LoadAgent | AttemptJob | None:
        """Return the next message, or ``None`` if the runner has ended."""
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError):
            return None
        message: LoadAgent | AttemptJob = messages.unpack(data, messages.ToWorker)
        return message

    async def serve(self, agent: HostedAgent) -> None:
        """Run jobs with ``agent`` until the runner ends."""
        loop = asyncio.get_running_loop()
        jobs: asyncio.Queue[AttemptJob] = asyncio.Queue()

        def listen() -> None:
            while isinstance(job := self.receive(), AttemptJob):
                loop.call_soon_threadsafe(jobs.put_nowait, job)
            os.killpg(0, signal.SIGKILL)  # the runner has ended: so do all processes started here

        threading.Thread(target=listen, name="agl-listen", daemon=True).start()
        while True:
            await self._run(agent, await jobs.get())

    async def _run(self, agent: HostedAgent, job: AttemptJob) -> None:
        def sink(span: Span) -> None:
            # an invalid record could not be sent either
            admitted = admit(span, job.rollout.rollout_id, job.attempt_id)
            self.send(messages.SpanMessage(job.attempt_id, admitted))

        counts: Counter[str] = Counter()
        try:
            outcome = await execute(agent, job.rollout, job.context(sink), counts)
        except BaseException as error:  # it ends this attempt and not the worker
            outcome = outcome_of_error(error)
        if os.getpid() != self._pid:
            os._exit(0)  # the agent forked, and this is the copy
        capture.end_attempt(job.attempt_id)
        now = Counter(COUNTS.snapshot())
        captured, self._counted = dict(now - self._counted), now
        try:
            self.send(AttemptDone(job.attempt_id, outcome, dict(counts), captured))
        except (TypeError, ValueError) as error:  # a value has no encoding: a text with half a character, say
            failed = outcome_of_error(error)
            self.send(AttemptDone(job.attempt_id, failed, dict(counts), captured))


def _described(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
