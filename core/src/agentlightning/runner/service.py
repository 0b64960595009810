"""A runner as a process: told to stop by signals, telling how it fares.

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

TELL_EVERY = 0.5
"""Seconds between two looks at how the runner fares."""
AT_ONCE = 2.0
"""Seconds in which stopped attempts are settled when it must be at once."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class State(msgspec.Struct):
    """How a runner fares: what became of its attempts, and how many are under way."""

    ended: dict[str, int] = {}
    running: int = 0


Tell = Callable[[State], None]


class Told:
    """Signals to this process, as events."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        self.code = 0
        """Exit status that the signals ask for."""

    def hear(self) -> None:
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


async def serve(runner: Runner, tell: Tell) -> int:
    """Serve until told to stop; the exit status. Raises what ends the runner by itself."""
    told = Told()
    told.hear()
    telling = asyncio.create_task(_telling(runner, tell))
    serving = asyncio.create_task(runner.serve(told.stop))
    hurry = asyncio.create_task(told.at_once.wait())
    try:
        await asyncio.wait({serving, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            runner.stop_all()
            await asyncio.wait({serving}, timeout=AT_ONCE)
        if serving.done():
            serving.result()
    finally:
        hurry.cancel()
        telling.cancel()
        tell(State(dict(runner.ended), runner.running))
    return told.code


async def _telling(runner: Runner, tell: Tell) -> None:
    while True:
        tell(State(dict(runner.ended), runner.running))
        await asyncio.sleep(TELL_EVERY)
