"""Keeps several runner processes alive: one that dies is started again, after a longer pause each time.

Invariant: a worker ends with its supervisor, and an error that a restart would meet again ends all workers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from agentlightning.runner.processes.process_tree import describe_exit
from agentlightning.runner.processes.service import RunnerState, StopSignals

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
WorkerCommand = Callable[[int], Sequence[str]]


class Supervisor:
    """Runs ``workers`` processes of ``command(report)``, which write their :class:`RunnerState` as JSON lines
    to the file descriptor ``report``. ``changed`` is called after each.
    """

    def __init__(self, command: WorkerCommand, workers: int, changed: Callable[[], None]) -> None:
        self._command = command
        self._workers = workers
        self._changed = changed
        self._ended_counts: Counter[str] = Counter()
        """Counts of processes that have ended."""
        self._states: dict[int, RunnerState] = {}
        self._processes: dict[int, Process] = {}
        self._signals = StopSignals()
        self._failed = 0
        self.restarts = 0

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
        slots = [asyncio.create_task(self._keep_alive(slot)) for slot in range(self._workers)]
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
            with suppress(ProcessLookupError):  # it has ended meanwhile
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
        """Run one process to its end."""
        loop = asyncio.get_running_loop()
        readable, writable = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command(writable),
                stdin=subprocess.DEVNULL,
                pass_fds=[writable],
                start_new_session=True,
            )
        finally:
            os.close(writable)
        self._processes[slot] = process
        if self._signals.stop.is_set():
            process.send_signal(signal.SIGTERM)
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb")
        )
        reading = asyncio.create_task(self._read(slot, reader))
        try:
            return await process.wait()
        finally:
            await asyncio.wait({reading}, timeout=1.0)
            reading.cancel()
            transport.close()
            del self._processes[slot]
            self._ended_counts.update(self._states.pop(slot, RunnerState()).counts)

    async def _read(self, slot: int, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._states[slot] = msgspec.json.decode(line, type=RunnerState)
            self._changed()
