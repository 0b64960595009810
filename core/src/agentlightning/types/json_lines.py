"""JSON lines: one value a line (https://jsonlines.org), the form of tasks, chats and the logs of runs.

A line ends at a line feed and nowhere else: ``str.splitlines`` also ends it at U+2028 and U+0085, which JSON
allows inside strings. A byte order mark before the first line is no part of it, and blank lines are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class NotJSON(ValueError):
    """A text that is not valid JSON; the message names the file and the line."""


def read_json_lines(path: Path) -> list[Any]:
    """Return the values of a file. Raise :class:`NotJSON`, ``OSError`` or ``UnicodeDecodeError``."""
    return [value for _, value in json_lines(path.read_text(encoding="utf-8-sig"), str(path))]


def json_lines(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line of ``text``. ``where``: its source, for errors."""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            yield number, decode_json(line, f"{where}:{number}")


def decode_json(text: str | bytes, where: str) -> Any:
    """Return the value of a JSON text. Raise :class:`NotJSON`, which begins with ``where``."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise NotJSON(f"{where}: not valid JSON: {error}") from None
    except RecursionError:
        raise NotJSON(f"{where}: not valid JSON: nested too deeply") from None
