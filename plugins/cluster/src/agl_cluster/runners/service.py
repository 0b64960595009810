"""A runner as a process of its own: it stops on signals and reports its state.

The first SIGTERM or SIGINT lets running attempts end (``Runner.drain``); the second stops them at once. Exit
status: 0 if SIGTERM came first, 130 if Ctrl-C came first, 128 + the second signal if there was one.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

import msgspec

from agentlightning.runner.runner import Runner, StopEvent
from agentlightning.store.base import Conflict

log = logging.getLogger(__name__)
REPORT_SECONDS = 0.5
"""Seconds between two reports."""
STOP_SECONDS = 2.0
"""Seconds to write the ends of attempts that are stopped at once."""


class RunnerState(msgspec.Struct):
    """State of one runner, or the sum over the runners of a supervisor."""

    counts: dict[str, int] = {}
    """:attr:`.Runner.counts`."""
    running: int = 0
    """Attempts that run."""
    restarts: int = 0
    """Processes that were started again."""


Report = Callable[[RunnerState], None]


class StopSignals:
    """SIGTERM and SIGINT to this process, as events."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()
        self.code = 0
        """Exit status after the signals."""

    def listen(self) -> None:
        """Handle the signals in the running loop, if this is the main thread: only that thread may."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, self._signal, number)
            except (RuntimeError, ValueError):  # not the main thread
                return

    def _signal(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            self.code = 128 + number
            self.at_once.set()
        else:
            self.code = 0 if number is signal.SIGTERM else 128 + number
            self.stop.set()


async def serve(
    runner: Runner, report: Report, rollout_id: str | None = None, *, limit: int | None = None
) -> int:
    """Serve until a signal, until ``rollout_id`` has ended, or until ``limit`` rollouts have, and return the
    exit status. Raise the error that ends the runner by itself.
    """
    signals = StopSignals()
    signals.listen()
    reporting = asyncio.create_task(_report_until_cancelled(runner, report))
    if rollout_id is None:
        serving = asyncio.create_task(runner.serve(signals.stop, limit=limit))
    else:
        serving = asyncio.create_task(serve_rollout(runner, rollout_id, signals.stop))
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
        report(_state(runner))
    return signals.code


async def serve_rollout(runner: Runner, rollout_id: str, stop: StopEvent | None = None) -> None:
    """Lease this rollout and run it, until it has ended or ``stop`` is set, as :meth:`.Runner.serve`. One
    that is not in the queue is left alone, and counted as ``not-queued``: it has ended, or another worker has
    its lease.
    """
    async with runner.serving():
        try:
            lease = await runner.store.start_attempt(rollout_id, worker_id=runner.worker_id, queued=True)
        except Conflict as error:
            runner.counts["not-queued"] += 1
            log.warning("nothing to run: %s", error)
            return
        runner.begin(lease)
        while runner.running and not runner.should_stop(stop):
            await runner.wait_for_slot()


def _state(runner: Runner) -> RunnerState:
    return RunnerState(dict(runner.counts), runner.running)


async def _report_until_cancelled(runner: Runner, report: Report) -> None:
    while True:
        report(_state(runner))
        await asyncio.sleep(REPORT_SECONDS)
