"""What the commands' views share: a console as wide as its table, JSON, numbers."""

from __future__ import annotations

import codecs
import json
import sys
from typing import Any, TextIO

import msgspec

from agentlightning.redaction import say
from agentlightning.terminal import Console


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
