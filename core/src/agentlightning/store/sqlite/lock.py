"""One process writes a store file: it holds an advisory lock on ``<file>.lock``.

The kernel releases the lock when the process ends, however it ends, and forked children do not inherit it.
Invariant: only the lock decides whether a file has a writer; the text in the lock file names the writer.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import msgspec

from agentlightning.store.base import StoreError

_TRIES, _PAUSE = 5, 0.01
"""A writer tries again, because :func:`holder_of` takes a shared lock for a moment."""

_held: dict[Path, FileLock] = {}
"""Locks of this process. A POSIX lock does not exclude its own process, and ends when that process opens and
closes the file.
"""
_mutex = threading.RLock()
"""Held while a lock file is open, so that no thread closes it under another that has just locked it."""


class LockHolder(msgspec.Struct, omit_defaults=True, frozen=True):
    """The writer of a store file, as the lock file names it."""

    pid: int | None = None
    url: str | None = None
    """URL at which it serves the store, if it does."""


class Locked(StoreError):
    """Another process, or another part of this one, writes the file."""

    def __init__(self, path: Path, holder: LockHolder) -> None:
        who = "another process" if holder.pid is None else f"process {holder.pid}"
        advice = f"To share it, end that process, start `agl store {path}`, and give every process its URL"
        if holder.pid == os.getpid():
            who, advice = "this process already", "Use the store object that it made"
        if holder.url:
            advice = f"Write through its server: open_store({holder.url!r}), or AGL_STORAGE={holder.url}"
        super().__init__(
            f"{path} is in use: {who} writes it. {advice}. To read it meanwhile: "
            f"open_store({str(path)!r}, read_only=True)"
        )
        self.holder = holder


class FileLock:
    """The lock on a file, from construction to :meth:`release`. Raises :class:`Locked` if it is taken."""

    def __init__(self, path: Path) -> None:
        self.path = _lock_file(path)
        self.holder = LockHolder(pid=os.getpid())
        self._file: int | None = None
        with _mutex:
            if (held := _held_here(self.path)) is not None:
                raise Locked(path, held.holder)
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise StoreError(f"{path} cannot be locked: {error}; choose another place") from None
            if not any(_try_lock(file, fcntl.LOCK_EX, pause) for pause in [0.0] + [_PAUSE] * _TRIES):
                holder = _read(file)
                os.close(file)
                raise Locked(path, holder)
            self._file = file
            _held[self.path] = self
        self._write()

    def announce(self, url: str) -> None:
        """Name the server of the store in the lock file."""
        self.holder = msgspec.structs.replace(self.holder, url=url)
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            text = msgspec.json.encode(self.holder)
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))

    def release(self) -> None:
        """Let the next process write the file."""
        with _mutex:
            if self._file is not None:
                os.close(self._file)
                self._file = None
                _held.pop(self.path, None)


def holder_of(path: Path) -> LockHolder | None:
    """Return the process that holds the lock of ``path``, or ``None``."""
    place = _lock_file(path)
    with _mutex:
        if (held := _held_here(place)) is not None:
            return held.holder
        try:
            with place.open("rb") as file:
                return None if _try_lock(file.fileno(), fcntl.LOCK_SH) else _read(file.fileno())
        except FileNotFoundError:
            return None


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock").resolve()


def _held_here(place: Path) -> FileLock | None:
    """Return the lock that this process holds, not the process that it was forked from."""
    found = _held.get(place)
    return found if found is not None and found.holder.pid == os.getpid() else None


def _read(file: int) -> LockHolder:
    try:
        return msgspec.json.decode(os.pread(file, 1 << 16, 0), type=LockHolder)
    except msgspec.DecodeError:  # it is being written just now
        return LockHolder()


def _try_lock(file: int, kind: int, pause: float = 0.0) -> bool:
    """Try to lock after ``pause`` seconds. Return False if another process holds the lock."""
    time.sleep(pause)
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
