"""What is printed: a console and a table that show other people's text and do not obey it, JSON, figures.

Names of agents, tags, reasons, tasks and answers are written by others. Printed as they are, they could set
the terminal's title, clear its screen, or show other text than stands there. Invariant: of such text, nothing
but visible characters, tabs and line ends reaches a terminal, and no password of a URL.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import msgspec
import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from agentlightning.redaction import say, shown, visible


class Console(rich.console.Console):
    """rich's console, whose text is made visible. Its own styles and movements of the cursor stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of ``renderable``."""
        if isinstance(renderable, Text) and (plain := shown(renderable.plain)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = plain
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


class TextTable(Table):
    """A table that shows strings as they are: rich's markup in the words of a model or an agent is text."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(shown(cell)) if isinstance(cell, str) else cell for cell in cells), **options)


def wide_console(width: int) -> Console:
    """Return the console of stdout, ``width`` columns wide where stdout is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = width
    return console


def print_json(value: Any, file: TextIO | None = None) -> None:
    """Print ``value`` as JSON on one line of stdout or ``file``: in ASCII if its encoding is not UTF-8."""
    file = file or sys.stdout
    text = msgspec.json.encode(value, enc_hook=str).decode()
    if codecs.lookup(file.encoding or "utf-8").name != "utf-8":
        text = json.dumps(json.loads(text))
    say(text, file=file)


def number(value: float | None, form: str = ".3f") -> str:
    """Return ``value`` in the format ``form``, and a dash for ``None``."""
    return "–" if value is None else format(value, form)


# ------------------------------------------------------------------------------------- figures
def format_bytes(count: float) -> str:
    """Format bytes, e.g. ``3.4 MB`` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Format seconds, e.g. ``0.42 s``, ``73 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def format_number(value: float) -> str:
    """Format a reward, e.g. ``0.250``; huge ones as ``1.5e+30``."""
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def percent(share: float) -> str:
    """Format a share, e.g. ``37 %``."""
    return f"{100 * share:.0f} %"


def format_counts(counts: Mapping[str, float]) -> str:
    """Format the four most common counts: ``3 × template, 1 × branch``."""
    listed = Counter({k: int(v) for k, v in counts.items()}).most_common(4)
    return ", ".join(f"{n} × {reason}" for reason, n in listed)


def plural(n: int, noun: str) -> str:
    """Format a number with its noun: ``1 call``, ``2,000 calls``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
