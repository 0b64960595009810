"""A worker process: runs the agent on one attempt after another, for a runner that may kill it at any time.

Spans go to the runner as they end, so a killed worker loses none that had ended. Invariants: it ends with its
runner; nothing that the agent forks can write into its connection; its environment holds no secret of the
run but the keys of its attempts.
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
from typing import Any

from agentlightning import capture
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.emit.validation import admit
from agentlightning.capture.instrument.sessions import capturing
from agentlightning.decorator.agents import LitAgent
from agentlightning.plugins.manager import load
from agentlightning.runner.adapters import instrumentors
from agentlightning.runner.execute import AttemptResult, execute
from agentlightning.runner.outcomes.outcome import outcome_of_error
from agentlightning.runner.processes import messages
from agentlightning.runner.processes.messages import AgentLoaded, AttemptDone, AttemptJob, LoadAgent
from agentlightning.runner.processes.process_tree import adopt_orphans
from agentlightning.runner.processes.spawn import enter
from agentlightning.types import Span

SECRETS = ("AGL_SECRET", "AGL_TOKEN", "AGL_SEAL_KEY")
"""Environment variables that the agent's code does not get."""


def main(connection: Connection, runner: int) -> None:
    """Serve process ``runner``, which holds the other end of the connection."""
    enter(connection, runner)
    adopt_orphans()
    for name in SECRETS:
        os.environ.pop(name, None)
    channel = Channel(connection)
    wanted = channel.receive()
    if not isinstance(wanted, LoadAgent):
        return
    try:
        agent = pickle.loads(wanted.agent)
        needed = instrumentors(load(), wanted.adapters)
    except BaseException as error:
        channel.send(AgentLoaded(_described(error)))
        raise SystemExit(2) from None
    with capturing(needed):
        channel.send(AgentLoaded())
        asyncio.run(WorkerProcess(agent, channel).serve())


class Channel:
    """The worker's end of the connection. Any thread may send; a process that the agent forks has none."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, message: messages.FromWorker) -> None:
        """Hand a message to the runner."""
        if not self.is_open_here:
            raise RuntimeError("a process that the agent forked has no channel: its spans are not recorded")
        data = messages.pack(message)
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> LoadAgent | AttemptJob | None:
        """The next message; ``None``: the runner has ended."""
        try:
            data = self._connection.recv_bytes()
        except (EOFError, OSError):
            return None
        message: LoadAgent | AttemptJob = messages.unpack(data, messages.ToWorker)
        return message

    @property
    def is_open_here(self) -> bool:
        """Whether this is the process that the channel was opened in."""
        return os.getpid() == self._pid


class WorkerProcess:
    """Runs the jobs that come over ``channel`` with ``agent``."""

    def __init__(self, agent: LitAgent[Any], channel: Channel) -> None:
        self._agent = agent
        self._channel = channel
        self._counted: Counter[str] = Counter()
        """What capture had counted when the last attempt ended."""

    async def serve(self) -> None:
        """Run jobs until the runner ends."""
        loop = asyncio.get_running_loop()
        jobs: asyncio.Queue[AttemptJob] = asyncio.Queue()

        def listen() -> None:
            while isinstance(job := self._channel.receive(), AttemptJob):
                loop.call_soon_threadsafe(jobs.put_nowait, job)
            os.killpg(0, signal.SIGKILL)  # the runner has ended: so do all processes started here

        threading.Thread(target=listen, name="agl-listen", daemon=True).start()
        while True:
            await self._run(await jobs.get())

    async def _run(self, job: AttemptJob) -> None:
        def sink(span: Span) -> None:
            # what cannot be a record could not be sent either
            admitted = admit(span, job.rollout.rollout_id, job.attempt_id)
            self._channel.send(messages.SpanMessage(job.attempt_id, admitted))

        counts: Counter[str] = Counter()
        try:
            result = await execute(self._agent, job.rollout, job.context(sink), counts)
        except BaseException as error:  # it ends this attempt and not the worker
            result = AttemptResult(outcome_of_error(error))
        if not self._channel.is_open_here:
            os._exit(0)  # the agent forked, and this is the copy
        capture.end_attempt(job.attempt_id)
        self._send_done(job.attempt_id, result, counts)

    def _send_done(self, attempt_id: str, result: AttemptResult, counts: Counter[str]) -> None:
        now = Counter(COUNTS.snapshot())
        captured, self._counted = dict(now - self._counted), now
        try:
            self._channel.send(AttemptDone(attempt_id, result, dict(counts), captured))
        except (TypeError, ValueError) as error:  # it has no encoding: a text with half a character, say
            failed = AttemptResult(outcome_of_error(error))
            self._channel.send(AttemptDone(attempt_id, failed, dict(counts), captured))


def _described(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
