"""Starts a process of a program and waits for it; terminates it when its time is up.

The process shares the standard streams and the process group of ``agl run``, so input and Ctrl-C reach it as
if the user had started it. Invariant: when :func:`run_process` returns, the process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentlightning.decorator.errors import BadReward
from agentlightning.runner.processes.process_tree import descendants, kill_all, kill_tree

TERMINATE_SECONDS = 0.6
"""Seconds between SIGTERM and SIGKILL."""
NOT_EXECUTED = 126
"""Exit status for a file that the system refuses to execute."""
REWARD_FILE_BYTES = 4096
"""Bytes that are read of a reward file."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals after which no further process is started."""


class ProgramFailed(Exception):
    """The program ended with an exit status other than 0, or by a signal."""


@dataclass(slots=True)
class Processes:
    """The running processes, to which signals are forwarded."""

    running: set[asyncio.subprocess.Process] = field(default_factory=set)
    ending_signal: int | None = None
    """The signal that has ended the run."""

    def note_signal(self, number: int) -> None:
        """Remember a signal that ends the run."""
        if number in ENDING_SIGNALS:
            self.ending_signal = number

    def forward_signal(self, number: int) -> None:
        """Send a signal to every process."""
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                process.send_signal(number)


async def run_process(command: Sequence[str], environment: Mapping[str, str], processes: Processes) -> int:
    """Run a command to its end and return its exit status, negative for the signal that killed it.
    Cancellation terminates the process and all its descendants.
    """
    process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
    processes.running.add(process)
    if processes.ending_signal is not None:  # it arrived while the process was started
        processes.forward_signal(processes.ending_signal)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        await _terminate(process)
        raise
    finally:
        processes.running.discard(process)


async def _terminate(process: asyncio.subprocess.Process) -> None:
    below = descendants(process.pid)  # now: once the process has ended, they have another parent
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), TERMINATE_SECONDS)
    except TimeoutError:
        kill_tree(process.pid)
        await process.wait()
    kill_all(below)


def exit_status(code: int) -> int:
    """Return the exit status that a shell reports."""
    return 128 - code if code < 0 else code


class RewardFile:
    """A file into which a program may write its reward, one number as text. Make the object before the
    program starts: a file that the program does not touch holds no reward.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._before = self._stamp()
        except OSError as error:
            raise BadReward(f"{path} cannot be read: {error}") from None

    def read(self) -> float | None:
        """Return the number, or ``None`` if the file was not written. Raise :class:`BadReward` otherwise."""
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
        if not self.path.is_file():  # reading a pipe would block
            raise OSError("it is no file")
        with self.path.open("rb") as file:
            return file.read(REWARD_FILE_BYTES).decode().strip()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
