"""The result of a command, as a reward function gets it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One model call of a program, as it passed on its way to the gateway."""

    path: str
    """The route, e.g. ``/v1/chat/completions``."""
    request: Any
    """The request's JSON; ``None`` if it was none."""
    status: int
    """HTTP status of the answer; 0: the program left before it came."""
    answer: Any
    """The answer's JSON; of a stream the list of its events; ``None`` if it was none."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a program left behind."""

    exit_code: int
    """Exit status, negative for the signal that killed the program."""
    stdout: str
    """The end of its standard output, up to ``output_bytes``."""
    stderr: str
    """The end of its standard error."""
    stdout_dropped: int
    """Bytes of standard output before ``stdout``."""
    stderr_dropped: int
    folder: Path
    """Its working folder, which exists until the reward is known."""
    calls: tuple[ModelCall, ...]
    """Its model calls in the order of their answers."""
    seconds: float
    """Time from its start to its end."""
    ended: str = ""
    """The limit of its sandbox that ended it (``seconds``, ``cpu``, ``memory``, ``processes``, ``disk``);
    empty: it ended by itself."""
