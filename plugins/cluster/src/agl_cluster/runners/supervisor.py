"""Keeps several runner processes alive: a process that dies is started again, after a longer pause each time.

Invariant: a worker ends with its supervisor, and an error that a restart would repeat ends all workers.
"""

from __future__ import annotations

import asyncio
import logging
import select
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import msgspec
import psutil

from agentlightning.runner.threads import in_thread
from agl_cluster.process_tree import describe_exit, spawn
from agl_cluster.runners.service import Report, RunnerState, StopSignals

log = logging.getLogger(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a worker is started again: doubled each time."""
STABLE_SECONDS = 60.0
"""Seconds after which a worker's earlier deaths no longer lengthen the pause."""
UNRECOVERABLE = 2
"""Exit status of an error that a person must fix."""
STOPPED = (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit statuses of a worker that a signal stopped, before or after it handles signals itself."""
KILL_SECONDS = 5.0
"""Seconds a worker has after the second signal."""
Work = Callable[[Connection, int, Any], None]
"""Function of a worker process: takes its connection, its supervisor's process id and the options."""


@dataclass(slots=True)
class Supervisor:
    """Runs ``workers`` processes of ``work``, which send a :class:`RunnerState` now and then. After each,
    ``report`` is called with their sum. ``work`` and ``options`` must be picklable.
    """

    work: Work
    options: Any
    workers: int
    report: Report
    _restarts: int = 0
    _states: list[RunnerState] = field(default_factory=list)
    """The last state of each process, of ended ones too."""
    _processes: dict[int, psutil.Process] = field(default_factory=dict)
    _signals: StopSignals = field(default_factory=StopSignals)
    _failed: int = 0

    @property
    def state(self) -> RunnerState:
        """The sum over all workers."""
        counts: Counter[str] = Counter()
        for state in self._states:
            counts.update(state.counts)
        running = sum(state.running for state in self._states)
        return RunnerState(dict(counts), running, self._restarts)

    async def run(self) -> int:
        """Run until a signal or an unrecoverable error, and return the exit status."""
        self._signals.listen()
        slots = [asyncio.create_task(self._keep_alive(slot)) for slot in range(self.workers)]
        forwarding = asyncio.create_task(self._forward_signals())
        try:
            await asyncio.gather(*slots)
        finally:
            for task in (*slots, forwarding):
                task.cancel()
            self._signal(signal.SIGKILL)
        return self._failed or self._signals.code

    async def _forward_signals(self) -> None:
        """Forward signals to the workers, whose sessions do not get them from the terminal."""
        await self._signals.stop.wait()
        self._signal(signal.SIGINT if self._signals.code else signal.SIGTERM)
        await self._signals.at_once.wait()
        self._signal(signal.SIGTERM)
        await asyncio.sleep(KILL_SECONDS)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with suppress(psutil.Error):  # it has ended meanwhile
                process.send_signal(number)

    async def _keep_alive(self, slot: int) -> None:
        """Run one worker again and again until a stop."""
        deaths = 0
        while not self._signals.stop.is_set():
            began = time.monotonic()
            code = await self._run_once(slot)
            if self._signals.stop.is_set():
                self._failed = self._failed or (0 if code in (self._signals.code, *STOPPED) else code)
                return
            if code == UNRECOVERABLE:
                self._failed = UNRECOVERABLE
                self._signals.stop.set()
                return
            deaths = 1 if time.monotonic() - began > STABLE_SECONDS else deaths + 1
            pause = min(FIRST_PAUSE * 2 ** (deaths - 1), LONGEST_PAUSE)
            self._restarts += 1
            log.warning("worker %d %s; starting it again in %g s", slot, describe_exit(code), pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._signals.stop.wait(), pause)

    async def _run_once(self, slot: int) -> int:
        """Run one process to its end and return its exit status."""
        process, connection = spawn(self.work, self.options, name=f"agl-runner-{slot}")
        self._processes[slot] = psutil.Process(process.pid)
        number = len(self._states)
        self._states.append(RunnerState())
        if self._signals.stop.is_set():
            self._processes[slot].send_signal(signal.SIGTERM)
        try:
            return await in_thread(self._read_to_end, number, process, connection, asyncio.get_running_loop())
        finally:
            del self._processes[slot]
            self._states[number].running = 0

    def _read_to_end(
        self, number: int, process: SpawnProcess, connection: Connection, loop: asyncio.AbstractEventLoop
    ) -> int:
        with connection, suppress(EOFError, OSError):
            while True:
                state = msgspec.json.decode(connection.recv_bytes(), type=RunnerState)
                loop.call_soon_threadsafe(self._set_state, number, state)
        process.join()
        return process.exitcode or 0

    def _set_state(self, number: int, state: RunnerState) -> None:
        self._states[number] = state
        self.report(self.state)


def send_report(connection: Connection, state: RunnerState) -> None:
    """Send a runner's state to its supervisor, unless the supervisor does not read at present."""
    if select.select([], [connection], [], 0)[1]:
        connection.send_bytes(msgspec.json.encode(state))
