"""Keeps several runner processes alive: one that dies is started again, after a longer pause each time.

Invariant: a worker ends with its supervisor, and an error that a restart would meet again ends all workers.
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

from agentlightning.runner.event_loops.threads import in_thread
from agentlightning.runner.processes.process_tree import describe_exit
from agentlightning.runner.processes.service import RunnerState, StopSignals
from agentlightning.runner.processes.spawn import spawn

log = logging.getLogger(__name__)
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a worker is started again: doubled each time."""
STABLE_SECONDS = 60.0
"""Seconds that a worker must live for its earlier deaths not to count."""
UNRECOVERABLE = 2
"""Exit status of an error that a person must fix."""
STOPPED = (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit statuses of a worker that a signal stopped: before it handled signals, when it had leased nothing, or
after.
"""
KILL_SECONDS = 5.0
"""Seconds a worker has after the second signal."""
Work = Callable[[Connection, int, Any], None]
"""What a worker process does, with its connection, its supervisor's id, and the options."""


@dataclass(slots=True)
class Supervisor:
    """Runs ``workers`` processes of ``work``, which send a :class:`RunnerState` now and then. ``changed`` is
    called after each. ``work`` and ``options`` can be pickled.
    """

    work: Work
    options: Any
    workers: int
    changed: Callable[[], None]
    restarts: int = 0
    _ended_counts: Counter[str] = field(default_factory=Counter)
    """Counts of processes that have ended."""
    _states: dict[int, RunnerState] = field(default_factory=dict)
    _processes: dict[int, psutil.Process] = field(default_factory=dict)
    _signals: StopSignals = field(default_factory=StopSignals)
    _failed: int = 0

    @property
    def state(self) -> RunnerState:
        """The sum over all workers."""
        ended = Counter(self._ended_counts)
        for state in self._states.values():
            ended.update(state.counts)
        return RunnerState(dict(ended), sum(state.running for state in self._states.values()))

    async def run(self) -> int:
        """Run until a signal or an unrecoverable error; the exit status."""
        self._signals.listen()
        slots = [asyncio.create_task(self._keep_alive(slot)) for slot in range(self.workers)]
        passing = [asyncio.create_task(self._forward_signals())]
        try:
            await asyncio.gather(*slots)
        finally:
            for task in (*slots, *passing):
                task.cancel()
            self._signal(signal.SIGKILL)
        return self._failed or self._signals.code

    async def _forward_signals(self) -> None:
        """Pass signals on to the workers: their sessions do not get them from the terminal."""
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
        """Keep one worker alive."""
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
            self.restarts += 1
            log.warning("worker %d %s; starting it again in %g s", slot, describe_exit(code), pause)
            try:
                await asyncio.wait_for(self._signals.stop.wait(), pause)
            except TimeoutError:
                continue

    async def _run_once(self, slot: int) -> int:
        """Run one process to its end; its exit status."""
        process, connection = spawn(self.work, self.options, name=f"agl-runner-{slot}")
        self._processes[slot] = psutil.Process(process.pid)
        if self._signals.stop.is_set():
            self._processes[slot].send_signal(signal.SIGTERM)
        try:
            return await in_thread(self._read_to_end, slot, process, connection, asyncio.get_running_loop())
        finally:
            del self._processes[slot]
            self._ended_counts.update(self._states.pop(slot, RunnerState()).counts)

    def _read_to_end(
        self, slot: int, process: SpawnProcess, connection: Connection, loop: asyncio.AbstractEventLoop
    ) -> int:
        with connection, suppress(EOFError, OSError):
            while True:
                state = msgspec.json.decode(connection.recv_bytes(), type=RunnerState)
                loop.call_soon_threadsafe(self._set_state, slot, state)
        process.join()
        return process.exitcode or 0

    def _set_state(self, slot: int, state: RunnerState) -> None:
        self._states[slot] = state
        self.changed()


class Reporter:
    """Sends a runner's state to its supervisor; skips it while the supervisor does not read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, state: RunnerState) -> None:
        if select.select([], [self._connection], [], 0)[1]:
            self._connection.send_bytes(msgspec.json.encode(state))
