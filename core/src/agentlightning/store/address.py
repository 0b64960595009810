"""Where the owner of a store file is reached on its own machine: a Unix socket that only its user may open.

``<file>.sock`` beside the file. Where the kernel's limit of about 100 bytes or the file system forbids that,
a socket in a private folder of the user; the lock file says where.

Invariant: only the holder of the file's lock makes or removes its socket, so a socket that nobody answers on
was left behind by an owner that died.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from agentlightning.store.base import StoreError

UNIX = "unix://"
HAS_UNIX = hasattr(socket, "AF_UNIX") and sys.platform != "win32"
_LONGEST = 100
"""Bytes of a socket's path: 104 on macOS, 108 on Linux, with the final zero."""

_listening: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def beside(file: Path) -> Path:
    """The usual socket of a store file."""
    return file.with_name(file.name + ".sock")


def listen(file: Path) -> socket.socket:
    """A socket for the store in ``file``, bound, with mode 0600; to be called by the holder of its lock."""
    last: Exception = OSError("its path is too long, and there is no folder for temporary files")
    for path in _places(file):
        try:
            if path != beside(file):
                _make_private(path.parent)
            return _bind(path)
        except OSError as error:
            last = error
    raise StoreError(f"no local socket can be made for {file}: {last}")


def remove(path: str | None) -> None:
    """Remove the file of a socket of :func:`listen`."""
    if path is not None:
        Path(path).unlink(missing_ok=True)


def _places(file: Path) -> Iterator[Path]:
    folder = f"agentlightning-{os.getuid()}"
    name = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:24] + ".sock"
    private = [Path(base) / folder / name for base in _bases() if os.path.isdir(base)]
    for path in (beside(file), *private):
        if len(os.fsencode(path)) <= _LONGEST:
            yield path


def _bases() -> list[str]:
    """Where a private folder may lie; the last is short whatever the environment says."""
    return [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]


def _make_private(folder: Path) -> None:
    """A folder that is this user's own, so that nobody else can put a socket there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user may enter")


def _bind(path: Path) -> socket.socket:
    if path.is_socket():
        path.unlink()  # we hold the lock: its owner is dead
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        os.chmod(path, 0o600)  # nobody can connect before: it does not listen yet
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    _listening.add(sock)
    return sock


def _after_fork() -> None:
    """A child must not keep its parent's socket alive: clients would wait there for an answer."""
    for sock in list(_listening):
        sock.close()
    _listening.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
