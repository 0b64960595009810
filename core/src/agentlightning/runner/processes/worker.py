"""A worker process: runs the agent on one attempt after another, for a runner that may kill it at any time.

Spans go to the runner as they end, so that nothing is lost with the process. Standard output is the agent's
own; frames have a socket to themselves. Invariants: it ends with its runner; nothing that the agent forks can
write into the socket; it knows no secret of the run but the keys of its attempts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from typing import Any

from agentlightning import capture
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.emit.validation import admit
from agentlightning.capture.instrument.sessions import capturing
from agentlightning.decorator.agents import LitAgent
from agentlightning.plugins.manager import load
from agentlightning.runner.adapters import instrumentors
from agentlightning.runner.execute import AttemptResult, execute
from agentlightning.runner.outcomes.outcome import outcome_of_error
from agentlightning.runner.processes.messages import (
    HEAD,
    AttemptDone,
    AttemptJob,
    FromWorker,
    SpanMessage,
    ToWorker,
    WorkerReady,
    WorkerSetup,
    packed,
    unpacked,
)
from agentlightning.runner.processes.portable import unpickled
from agentlightning.runner.processes.process_tree import adopt_orphans, die_with_parent
from agentlightning.types import Span


class Channel:
    """The socket to the runner. Sending is safe from any thread; a forked process has no channel."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, frame: FromWorker) -> None:
        """Hand a frame to the runner."""
        if os.getpid() != self._pid:
            raise RuntimeError("a process that the agent forked has no channel: its spans are not recorded")
        data = packed(frame)
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> WorkerSetup | AttemptJob | None:
        """The next frame; ``None``: the runner is gone."""
        head = self._exactly(HEAD.size)
        body = self._exactly(HEAD.unpack(head)[0]) if head else None
        frame: WorkerSetup | AttemptJob | None = unpacked(body, ToWorker) if body else None
        return frame

    def _exactly(self, n: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < n:
            part = self._socket.recv(n - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def forked(self) -> None:
        """In a process that the agent forked: let go of the socket."""
        self._socket.close()

    @property
    def mine(self) -> bool:
        """This is the process that the channel was opened in."""
        return os.getpid() == self._pid


class WorkerProcess:
    """Runs the jobs that come over ``channel`` with ``agent``."""

    def __init__(self, agent: LitAgent[Any], channel: Channel) -> None:
        self.agent = agent
        self.channel = channel
        self._told: dict[str, int] = {}

    async def serve(self) -> None:
        """Run jobs until the runner is gone."""
        loop = asyncio.get_running_loop()
        jobs: asyncio.Queue[AttemptJob] = asyncio.Queue()

        def listen() -> None:
            while isinstance(job := self.channel.receive(), AttemptJob):
                loop.call_soon_threadsafe(jobs.put_nowait, job)
            os.killpg(0, signal.SIGKILL)  # the runner is gone: end with all that was started here

        threading.Thread(target=listen, name="agl-listen", daemon=True).start()
        while True:
            await self._run(await jobs.get())

    async def _run(self, job: AttemptJob) -> None:
        def sink(span: Span) -> None:
            # what cannot be a record could not be sent either
            self.channel.send(
                SpanMessage(job.attempt_id, admit(span, job.rollout.rollout_id, job.attempt_id))
            )

        context = AttemptContext(
            rollout_id=job.rollout.rollout_id,
            attempt_id=job.attempt_id,
            sink=sink,
            key=job.key,
            gateway=job.gateway,
            policies=job.policies,
            resources=job.resources,
            task=job.rollout.input,
        )
        counts: Counter[str] = Counter()
        try:
            ended = await execute(self.agent, job.rollout, context, counts)
        except BaseException as error:  # whatever it is, it ends this attempt and not the worker
            ended = AttemptResult(outcome_of_error(error))
        if not self.channel.mine:
            os._exit(0)  # the agent forked, and this is the other one
        capture.end_attempt(job.attempt_id)
        self._done(job.attempt_id, ended, counts)

    def _done(self, attempt_id: str, ended: AttemptResult, counts: Counter[str]) -> None:
        before, self._told = self._told, COUNTS.snapshot()
        captured = {why: n - before.get(why, 0) for why, n in self._told.items() if n > before.get(why, 0)}
        try:
            self.channel.send(AttemptDone(attempt_id, ended, dict(counts), captured))
        except (TypeError, ValueError) as error:  # what has no encoding: a text with half a character, say
            self.channel.send(
                AttemptDone(attempt_id, AttemptResult(outcome_of_error(error)), dict(counts), captured)
            )


def main(fd: int) -> None:
    """Serve the runner at the other end of the socket ``fd``."""
    channel = Channel(socket.socket(fileno=fd))
    setup = channel.receive()
    if not isinstance(setup, WorkerSetup):
        raise SystemExit("agl worker: started without a runner")
    die_with_parent(setup.parent)
    adopt_orphans()
    os.register_at_fork(after_in_child=channel.forked)
    try:
        agent = unpickled(setup.agent, setup.prepared)
        needed = instrumentors(load(), setup.adapters)
    except BaseException as error:
        told = "".join(traceback.format_exception_only(error)).strip()
        channel.send(WorkerReady(f"{told}{_place(error)}"))
        raise SystemExit(2) from None
    with capturing(needed):
        channel.send(WorkerReady())
        asyncio.run(WorkerProcess(agent, channel).serve())


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


if __name__ == "__main__":
    from agentlightning.runner.processes import (
        worker,  # the importable one: this module is replaced as __main__
    )

    worker.main(int(sys.argv[1]))
