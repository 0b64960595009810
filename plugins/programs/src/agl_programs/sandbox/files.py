"""The folder of a sandbox, of which a command that is not trusted wrote every name and every link.

Invariants: no path leads out of the folder, because each of its steps is opened without following a link; and
what is opened is a file, so that reading does not block.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from agentlightning.capture.delivery import COUNTS

_LOG = logging.getLogger(__name__)
_STEP = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_RDONLY


def new_folders(user: int | None) -> tuple[Path, Path]:
    """Make the folder of a sandbox and that of its ``/tmp``, of which ``user`` is the owner. They lie in one
    that no other user may enter.
    """
    both = Path(tempfile.mkdtemp(prefix="agl-sandbox-"))
    folder, tmp = both / "folder", both / "tmp"
    for made, mode in ((folder, 0o700), (tmp, 0o1777)):
        made.mkdir()
        give(made, user)
        made.chmod(mode)
    return folder, tmp


def give(folder: Path, user: int | None) -> None:
    """Make ``user`` the owner of a folder and of all in it; links are not followed."""
    if user is None:
        return
    os.lchown(folder, user, user)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.lchown(os.path.join(place, name), user, user)


def write(folder: Path, name: str, content: str | bytes, user: int | None, mode: int = 0o644) -> None:
    """Write a file, and the folders that it needs. ``ValueError`` for a path that is not inside."""
    data = content.encode() if isinstance(content, str) else content
    with _parent(folder, name, make=True, user=user) as (parent, last):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=parent)  # what the command made of it: a link, a pipe
        file = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=parent)
        with open(file, "wb") as opened:
            if user is not None:
                os.fchown(file, user, user)
            opened.write(data)


def make(folder: Path, name: str, user: int | None) -> None:
    """Make an empty folder. ``OSError`` if something is there, ``ValueError`` if the path leads out."""
    with _parent(folder, name, make=True, user=user) as (parent, last):
        os.mkdir(last, 0o755, dir_fd=parent)
        if user is not None:
            os.chown(last, user, user, dir_fd=parent, follow_symlinks=False)


def read(folder: Path, name: str, limit: int) -> bytes:
    """Return the content of a file. ``OSError`` if there is none, or it is a link, a pipe or a folder;
    ``ValueError`` for a path that is not inside, and for a file of more than ``limit`` bytes.
    """
    with _parent(folder, name, make=False, user=None) as (parent, last):
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        with open(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(f"{name} is no file")
            data = opened.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{name} has more than {limit:,} bytes")
    return data


@contextlib.contextmanager
def _parent(folder: Path, name: str, *, make: bool, user: int | None) -> Iterator[tuple[int, str]]:
    """Open the folder of a path step by step; yield its descriptor and the last part of the path."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise ValueError(f"{name!r}: give a path inside the sandbox's folder, without ..")
    at = os.open(folder, _STEP)
    try:
        for part in parts[:-1]:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=at)
                    if user is not None:
                        os.chown(part, user, user, dir_fd=at, follow_symlinks=False)
            deeper = os.open(part, _STEP, dir_fd=at)
            os.close(at)
            at = deeper
        yield at, parts[-1]
    finally:
        os.close(at)


def only_own_files(folder: Path) -> int:
    """Remove what leads out of a folder or blocks its reader: links to the outside, pipes, sockets. Return
    how many. No process of the sandbox may run any more.
    """
    removed, root = 0, os.path.realpath(folder)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                target = os.path.realpath(path)
                inside = target == root or target.startswith(root + os.sep)
            else:
                inside = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
            if not inside:
                os.unlink(path)
                removed += 1
    if removed:
        COUNTS.add("sandbox-link-removed", removed)
    return removed


def remove(folder: Path) -> None:
    """Remove a folder, whatever is in it. What cannot be removed is counted as ``folder-left-behind``."""
    try:
        shutil.rmtree(folder)
        return
    except (OSError, RecursionError):  # folders of mode 0, or deeper than Python's stack
        subprocess.run(["chmod", "-R", "u+rwx", "--", folder], capture_output=True)
        subprocess.run(["rm", "-rf", "--", folder], capture_output=True)
    if folder.exists():
        COUNTS.add("folder-left-behind")
        _LOG.warning("the folder %s of a sandbox was left behind", folder)
