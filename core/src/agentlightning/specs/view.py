"""Subcommands of ``agl``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A subcommand of ``agl``: ``register(app)`` adds it."""

    name: str
    register: Callable[[Any], None]
    about: str = field(default="")
