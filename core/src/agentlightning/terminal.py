"""What is printed: a console and a table that show other people's text and do not obey it, and JSON.

Names of agents, tags, reasons, tasks and answers are written by others. Printed as they are, they could set
the terminal's title, clear its screen, or show other text than stands there. Invariant: of such text, nothing
but visible characters, tabs and line ends reaches a terminal, and no password of a URL.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable
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


def print_json(value: Any, file: TextIO | None = None) -> None:
    """Print ``value`` as JSON on one line of stdout or ``file``: in ASCII if its encoding is not UTF-8."""
    file = file or sys.stdout
    text = msgspec.json.encode(value, enc_hook=str).decode()
    if codecs.lookup(file.encoding or "utf-8").name != "utf-8":
        text = json.dumps(json.loads(text))
    say(text, file=file)


def plural(n: int, noun: str) -> str:
    """Format a number with its noun: ``1 call``, ``2,000 calls``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
