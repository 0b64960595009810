"""One process of a program: started under its attempt's identity, waited for, and ended when its time is up.

It has our standard streams and our process group: what is typed, Ctrl-C included, reaches it as if it had
been started by hand. Invariant: when :func:`run_process` returns, the process it started has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentlightning.decorator.errors import BadReward
from agentlightning.runner.processes.process_tree import descendants, describe_exit, kill_all, kill_tree

TERMINATE_SECONDS = 0.6
"""Seconds that a program has to end by itself when it is told to."""
NOT_EXECUTED = 126
"""Exit status of what the system refuses to execute."""
REWARD_FILE_BYTES = 4096
"""Bytes of a reward file: more is no number."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals after which no further process is started."""


class ProgramFailed(Exception):
    """The program's own end was a failure: its exit status, or the signal it died with."""


@dataclass(slots=True)
class Processes:
    """The processes under way, which signals to us are passed on to."""

    running: set[asyncio.subprocess.Process] = field(default_factory=set)
    ending_signal: int | None = None
    """The signal that has ended the run."""

    def note_signal(self, number: int) -> None:
        """A signal came to us; whether to pass it on is another question."""
        if number in ENDING_SIGNALS:
            self.ending_signal = number

    def forward_signal(self, number: int) -> None:
        """Pass a signal on."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and is about to be taken out
                process.send_signal(number)


async def run_process(
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
    if processes.ending_signal is not None:  # it came while the process was being started
        processes.forward_signal(processes.ending_signal)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        await _terminate(process)
        raise
    finally:
        processes.running.discard(process)


async def _terminate(process: asyncio.subprocess.Process) -> None:
    below = descendants(process.pid)  # by name: once the process has ended, nobody knows whose they were
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), TERMINATE_SECONDS)
    except TimeoutError:
        kill_tree(process.pid)
        await process.wait()
    kill_all(below)


def describe_program_exit(code: int) -> str:
    """How a program ended, in words."""
    return f"the program {describe_exit(code)}"


def exit_status(code: int) -> int:
    """The exit status with which a shell would report it."""
    return 128 - code if code < 0 else code


class RewardFile:
    """A file that a program may write its reward into: one number, as text. Made before the program starts;
    what lay there before, untouched since, is no reward.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._before = self._stamp()
        except OSError as error:
            raise BadReward(f"{path} cannot be read: {error}") from None

    def read(self) -> float | None:
        """The number; ``None`` where none was written. :class:`BadReward`: what was written is no number."""
        try:
            if self._stamp() in (None, self._before):
                return None
            text = self._text()
            value = float(text)
        except (OSError, UnicodeDecodeError) as error:
            raise BadReward(f"{self.path} cannot be read: {error}") from None
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadReward(f"{self.path} holds {text[:60]!r}, not a finite number")
        return value

    def _text(self) -> str:
        if not self.path.is_file():  # to read a pipe is to wait
            raise OSError("it is no file")
        with self.path.open("rb") as file:
            return file.read(REWARD_FILE_BYTES).decode().strip()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
