"""One process owns a store file: an advisory lock on ``<file>.lock``, which also says who and where to ask.

The kernel releases the lock when the process dies, however it dies, and forked children do not inherit it.
The text in the file is never trusted to say *whether* the file is owned, only by whom and at which address.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import msgspec

from agentlightning.store.base import StoreError

_held: dict[Path, FileLock] = {}
"""A POSIX lock does not keep its own process out, and ends when that opens and closes the file once more."""
_mutex = threading.RLock()
"""Held while a lock file is open, so that no thread closes it under another that has just locked it."""


class LockOwner(msgspec.Struct, omit_defaults=True, frozen=True):
    """Who owns a store file, as its lock file says."""

    pid: int | None = None
    url: str | None = None
    """Where ``agl store`` serves it over HTTP."""
    address: str | None = None
    """Where other processes of this machine reach it: ``unix://…``, or loopback where there are no such
    sockets.
    """
    token: str | None = None
    """What a loopback ``address`` asks for."""

    def message(self, path: Path) -> str:
        """That the file is taken, by whom, and what to do."""
        who = "this process already has it open" if self.pid == os.getpid() else f"process {self.pid} owns it"
        if self.pid is None:
            who = "another process owns it"
        if self.url:
            way = f"Become its client: StoreClient({self.url!r}), or AGL_STORAGE={self.url}"
        elif self.address:
            way = f"Become its client: open_store({str(path)!r})"
        else:
            way = (
                "One process owns a store file. Stop that process, or let it open the file with open_store "
                "or `agl store`, which share it while their event loop runs"
            )
        return f"{path} is in use: {who}. {way}"


class Locked(StoreError):
    """Another process, or another part of this one, owns the file."""

    def __init__(self, path: Path, owner: LockOwner) -> None:
        super().__init__(owner.message(path))
        self.owner = owner


class FileLock:
    """Held from construction to :meth:`release`."""

    def __init__(self, path: Path) -> None:
        self.path = _lock_file(path)
        self.owner = LockOwner(pid=os.getpid())
        self._file: int | None = None
        with _mutex:
            if (ours := _our_lock(self.path)) is not None:
                raise Locked(path, ours.owner)
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise StoreError(f"{path} cannot be locked: {error}; choose another place") from None
            if not _try_lock(file):
                owner = _read(file)
                os.close(file)
                raise Locked(path, owner)
            self._file = file
            _held[self.path] = self
        self._write()

    @property
    def held(self) -> bool:
        """Whether the file is still ours."""
        return self._file is not None

    def announce(self, **said: str | None) -> None:
        """Say ``url``, ``address`` or ``token`` in the lock file."""
        self.owner = msgspec.structs.replace(self.owner, **said)
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            text = msgspec.json.encode(self.owner)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, text)
            os.ftruncate(self._file, len(text))

    def release(self) -> None:
        """Let the next process own the file."""
        with _mutex:
            if self._file is not None:
                os.close(self._file)
                self._file = None
                _held.pop(self.path, None)


def owner_of(path: Path) -> LockOwner:
    """Who owned the file last, as far as its lock file says; whether they still do, only the lock knows."""
    place = _lock_file(path)
    with _mutex:
        if (ours := _our_lock(place)) is not None:
            return ours.owner
        try:
            file = os.open(place, os.O_RDONLY)
        except FileNotFoundError:
            return LockOwner()
        try:
            return _read(file)
        finally:
            os.close(file)


def _lock_file(path: Path) -> Path:
    return path.with_name(path.name + ".lock").resolve()


def _our_lock(place: Path) -> FileLock | None:
    """The lock that this process (not the one it was forked from) holds."""
    found = _held.get(place)
    return found if found is not None and found.owner.pid == os.getpid() else None


def _read(file: int) -> LockOwner:
    try:
        return msgspec.json.decode(os.read(file, 1 << 16), type=LockOwner)
    except msgspec.DecodeError:  # the owner is just writing it, or the file is foreign: nobody knows who
        return LockOwner()


def _try_lock(file: int) -> bool:
    """Try to lock; False if another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file, 1 << 20, os.SEEK_SET)  # beyond the text, which others must be able to read
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
