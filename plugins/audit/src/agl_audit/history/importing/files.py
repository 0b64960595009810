"""Files of traces: JSON or JSON Lines, in the format that their first entry tells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentlightning.types import UsageError
from agentlightning.webserver.body import NotPlain, check_plain
from agl_audit.history.importing.trace import ImportedTrace, UnreadableTrace
from agl_audit.history.importing.writing import check_trace
from agl_audit.hookspecs import ImportFormatSpec

_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors of reading what is not of the format; :class:`.UnreadableTrace` and ``NotPlain`` are ValueErrors."""


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
        for place, entry in enumerate(self.entries, start=1):
            try:
                check_plain(entry)
            except NotPlain as error:
                raise UsageError(f"{path}, entry {place}: {error}") from None
        self.format = _format(self.entries, formats, name, path)

    def traces(self) -> list[ImportedTrace]:
        """Return the traces, each of which a store can hold. Raise :class:`UsageError`, which names the file
        and the place in it, for what is not of the format and for values that no model call has.
        """
        try:
            found: list[ImportedTrace] = self.format.read(self.entries)
        except _UNREADABLE as error:
            place = f", entry {n}" if (n := self._unreadable_entry()) else ""
            said = str(error) if isinstance(error, UnreadableTrace) else repr(error)
            raise UsageError(
                f"{self.path}{place}: not of the format {self.format.name}: {said[:500]}"
            ) from error
        for trace in found:
            try:
                check_trace(trace)
            except _UNREADABLE as error:
                raise UsageError(f"{self.path}, trace {trace.trace_id[:80]!a}: {str(error)[:500]}") from error
        return found

    def _unreadable_entry(self) -> int | None:
        """Return the number of the first entry that cannot be read by itself."""
        for n, entry in enumerate(self.entries, start=1):
            try:
                self.format.read([entry])
            except _UNREADABLE:
                return n
        return None


def _entries(content: bytes, path: Path) -> list[Any]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8: {error}") from None
    try:
        whole = json.loads(text)
        entries = whole if isinstance(whole, list) else [whole]
    except RecursionError:
        raise UsageError(f"{path}: its values are nested too deeply") from None
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
            except RecursionError:
                raise UsageError(f"{path}, line {place}: its values are nested too deeply") from None
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
