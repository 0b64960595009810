"""One process owns a store file: an advisory lock on ``<file>.lock``, which also says who.

The kernel releases the lock when the process dies, however it dies, and forked children do not inherit it;
the text in the file is only for messages.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO

from agentlightning.store.base import StoreError

_held: dict[Path, FileLock] = {}
"""A POSIX lock does not keep its own process out, and ends when that opens and closes the file once more."""


class FileLock:
    """Held from construction to :meth:`release`."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock").resolve()
        self.pid = os.getpid()
        self.url: str | None = None
        self._file: IO[str] | None = None
        ours = _held.get(self.path)
        if ours is not None and ours.pid == self.pid:
            raise StoreError(_taken(path, {"pid": ours.pid, "url": ours.url}))
        file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115 - held while we live
        if not _take(file):
            file.seek(0)
            owner = _owner(file.read())
            file.close()
            raise StoreError(_taken(path, owner))
        self._file = file
        _held[self.path] = self
        self.announce(None)

    def announce(self, url: str | None) -> None:
        """Say in the lock file who owns the store and, once served, at which URL."""
        self.url = url
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            json.dump({"pid": self.pid, "url": url}, self._file)
            self._file.flush()

    def release(self) -> None:
        """Let the next process own the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            _held.pop(self.path, None)


def _owner(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:  # the owner is just writing it, or the file is foreign: the message says "unknown"
        return {}
    return found if isinstance(found, dict) else {}


def _taken(path: Path, owner: dict[str, object]) -> str:
    pid, url = owner.get("pid", "unknown"), owner.get("url")
    who = "this process already has it open" if pid == os.getpid() else f"process {pid} owns it"
    if url:
        return f"{path} is in use: {who}. Become its client: StoreClient({url!r}), or AGL_STORAGE={url}"
    return (
        f"{path} is in use: {who}, and one process owns a store file. Stop that process, or serve the file "
        f"once with `agl store` and let every process use StoreClient('http://127.0.0.1:4747')"
    )


def _take(file: IO[str]) -> bool:
    """Try to lock; False if another process holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(1 << 20)  # beyond the text, which others must be able to read
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
