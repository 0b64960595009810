"""What the commands' views share: a console as wide as its table, JSON, numbers."""

from __future__ import annotations

from typing import Any

import msgspec

from agentlightning.redaction import say
from agentlightning.terminal import Console


def wide_console(width: int) -> Console:
    """Return the console of stdout, ``width`` columns wide where stdout is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


def print_json(value: Any) -> None:
    """Print ``value`` as JSON on one line of stdout."""
    say(msgspec.json.encode(value, enc_hook=str).decode())


def number(value: float | None, form: str = ".3f") -> str:
    """Return ``value`` in the format ``form``, and a dash for ``None``."""
    return "–" if value is None else format(value, form)
