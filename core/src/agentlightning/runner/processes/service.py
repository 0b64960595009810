"""A runner as a process: told to stop by signals, reporting how it fares.

The first SIGTERM or SIGINT lets what runs end (``Runner.drain``); the second stops it at once. Exit status: 0
after a drain that SIGTERM asked for, 130 after one that Ctrl-C asked for, 128 + the signal after the second
one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import msgspec

from agentlightning.runner.runner import Runner

REPORT_SECONDS = 0.5
"""Seconds between two looks at how the runner fares."""
STOP_SECONDS = 2.0
"""Seconds in which stopped attempts are settled when it must be at once."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunnerState(msgspec.Struct):
    """How a runner fares: what became of its attempts, and how many are under way."""

    counts: dict[str, int] = {}
    running: int = 0


Report = Callable[[RunnerState], None]


class StopSignals:
    """Signals to this process, as events."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        self.code = 0
        """Exit status that the signals ask for."""

    def listen(self) -> None:
        """Listen, in this loop."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            try:
                loop.add_signal_handler(number, self._signal, number)
            except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
                return

    def _signal(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            self.code = 128 + number
            self.at_once.set()
        else:
            self.code = 0 if number is signal.SIGTERM else 128 + number
            self.stop.set()


async def serve(runner: Runner, report: Report) -> int:
    """Serve until told to stop; the exit status. Raises what ends the runner by itself."""
    signals = StopSignals()
    signals.listen()
    reporting = asyncio.create_task(_report_until_cancelled(runner, report))
    serving = asyncio.create_task(runner.serve(signals.stop))
    stop_now = asyncio.create_task(signals.at_once.wait())
    try:
        await asyncio.wait({serving, stop_now}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            runner.stop_all()
            await asyncio.wait({serving}, timeout=STOP_SECONDS)
        if serving.done():
            serving.result()
    finally:
        stop_now.cancel()
        reporting.cancel()
        report(RunnerState(dict(runner.counts), runner.running))
    return signals.code


async def _report_until_cancelled(runner: Runner, report: Report) -> None:
    while True:
        report(RunnerState(dict(runner.counts), runner.running))
        await asyncio.sleep(REPORT_SECONDS)
