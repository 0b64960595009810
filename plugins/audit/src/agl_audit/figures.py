"""Figures in tables, and the console that is wide enough for them."""

from __future__ import annotations

from agentlightning.terminal import Console


def wide_console(width: int) -> Console:
    """Return the console of stdout, ``width`` columns wide where stdout is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


def number(value: float | None, form: str = ".3f") -> str:
    """Return ``value`` in the format ``form``, and a dash for ``None``."""
    return "–" if value is None else format(value, form)
