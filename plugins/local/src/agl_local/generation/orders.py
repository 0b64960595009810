"""What an engine's thread is told to do between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

PauseMode = Literal["drain", "hold"]
_MODES: dict[str, PauseMode] = {"drain": "drain", "hold": "hold"}


@dataclass
class Order:
    """Serve ``tensors`` as ``version``, or (without) just reach a pause; ``done`` gives the version.

    ``drain`` waits for running requests to finish, ``hold`` does not.
    """

    mode: PauseMode
    done: Future[int]
    tensors: Mapping[str, Tensor] | None = None
    version: int = 0


def pause_mode(name: str) -> PauseMode:
    """``name`` as a pause mode. Raises ValueError."""
    if name not in _MODES:
        raise ValueError(f"pause mode must be 'drain' or 'hold', got {name!r}")
    return _MODES[name]
