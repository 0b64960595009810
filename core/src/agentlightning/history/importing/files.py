"""Files of traces: JSON or JSON Lines, in the format that their first entry tells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentlightning.history.importing.trace import ImportedTrace, UnreadableTrace
from agentlightning.specs import ImportFormatSpec
from agentlightning.types import UsageError


class TraceFile:
    """The entries of a file, its format, and the sha256 of its content."""

    def __init__(self, path: Path, formats: Mapping[str, ImportFormatSpec], name: str | None = None) -> None:
        """``name``: a format; by default the first one that knows the file. Raise :class:`UsageError`."""
        self.path = path
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.entries = _entries(content, path)
        self.format = _format(self.entries, formats, name, path)

    def traces(self) -> list[ImportedTrace]:
        """Return the traces. Raise :class:`UsageError` for an entry that is not of the format."""
        try:
            found: list[ImportedTrace] = self.format.read(self.entries)
        except (UnreadableTrace, KeyError, TypeError, ValueError, AttributeError) as error:
            said = str(error) if isinstance(error, UnreadableTrace) else repr(error)
            raise UsageError(f"{self.path}: not of the format {self.format.name}: {said}") from error
        return found


def _entries(content: bytes, path: Path) -> list[Any]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8: {error}") from None
    try:
        whole = json.loads(text)
        entries = whole if isinstance(whole, list) else [whole]
    except ValueError:
        entries = list(_lines(text.split("\n"), path))
    if not entries:
        raise UsageError(f"{path}: the file holds no traces")
    return entries


def _lines(lines: Iterable[str], path: Path) -> Iterable[Any]:
    for place, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {place}: neither JSON nor JSON Lines: {error}") from None


def _format(
    entries: list[Any], formats: Mapping[str, ImportFormatSpec], name: str | None, path: Path
) -> ImportFormatSpec:
    if name is not None:
        if name not in formats:
            raise UsageError(f"no format {name!r}; there are {', '.join(sorted(formats))}")
        return formats[name]
    mine = [one for one in formats.values() if one.is_mine(entries[0])]
    if len(mine) == 1:
        return mine[0]
    found = " and ".join(one.name for one in mine) or "no format"
    raise UsageError(
        f"{path}: {found} knows its first entry; choose one by --format: {', '.join(sorted(formats))}"
    )
