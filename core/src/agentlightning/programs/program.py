"""One process of a program: started under its attempt's identity, waited for, and ended when its time is up.

It has our standard streams and our process group: what is typed, Ctrl-C included, reaches it as if it had
been started by hand. Invariant: when :func:`run` returns, the process it started has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentlightning.runner.lifeline import how_it_died, kill_tree

TO_END = 0.6
"""Seconds that a program has to end by itself when it is told to."""


class ProgramFailed(Exception):
    """The program's own end was a failure: its exit status, or the signal it died with."""


class BadReward(ValueError):
    """The reward file holds no number."""


@dataclass(slots=True)
class Processes:
    """The processes under way, which signals to us are passed on to."""

    running: set[asyncio.subprocess.Process] = field(default_factory=set)

    def send(self, number: int) -> None:
        """Pass a signal on."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and is about to be taken out
                process.send_signal(number)


async def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    processes: Processes,
    started: Callable[[], None] = lambda: None,
) -> int:
    """Run a command to its end; its exit status, negative for the signal it died with. Cancelled: it is ended
    with all that descends from it.
    """
    process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
    processes.running.add(process)
    started()
    try:
        return await process.wait()
    except asyncio.CancelledError:
        await _end(process)
        raise
    finally:
        processes.running.discard(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), TO_END)
    except TimeoutError:
        kill_tree(process.pid)
        await process.wait()


def told(code: int) -> str:
    """How a program ended, in words."""
    return f"the program {how_it_died(code)}"


def status_of(code: int) -> int:
    """The exit status with which a shell would report it."""
    return 128 - code if code < 0 else code


class RewardFile:
    """A file that a program may write its reward into: one number, as text. Made before the program starts;
    what lay there before, untouched since, is no reward.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = self._stamp()

    def read(self) -> float | None:
        """The number; ``None`` where none was written. :class:`BadReward`: what was written is no number."""
        if self._stamp() in (None, self._before):
            return None
        try:
            text = self.path.read_text().strip()
            value = float(text)
        except (OSError, UnicodeDecodeError) as error:
            raise BadReward(f"{self.path} cannot be read: {error}") from None
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadReward(f"{self.path} holds {text[:60]!r}, not a finite number")
        return value

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
