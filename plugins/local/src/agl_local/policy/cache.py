"""The folder of fetched policies: ``policies/`` in ``AGL_CACHE`` (default ``~/.cache/agentlightning``).

Invariants: a policy's folder there is complete; one process at a time writes to or removes from it; nothing
is removed that was not written here (``origin.json`` marks a fetched policy).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from agentlightning.store.places import home
from agentlightning.types import UsageError
from agl_local.policy.files import remove_unfinished, write_folder

_MARKER = "origin.json"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


class FetchError(UsageError):
    """A model that cannot be fetched; the text says why and what to do."""


def without_urls(text: str) -> str:
    """Return a text without its URLs: that of a package index or of the hub may hold a password."""
    return _URL.sub("<url>", text)


class ModelOrigin(msgspec.Struct, frozen=True):
    """Where a fetched policy came from."""

    name: str
    licence: str
    source: str
    sha256: str = ""
    """Digest of the file that it was converted from."""
    about: str = ""


class CachedPolicy(msgspec.Struct, frozen=True):
    """A policy in the cache."""

    path: Path
    origin: ModelOrigin
    new: bool = False
    """It was put there just now."""

    @property
    def fetched(self) -> datetime:
        """Return when it was put there."""
        return datetime.fromtimestamp((self.path / _MARKER).stat().st_mtime)

    @property
    def bytes(self) -> int:
        """Return the size of its files."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def policies_folder() -> Path:
    """Return the folder that holds the fetched policies; it may not exist yet."""
    cache = os.environ.get("AGL_CACHE")
    folder = Path(cache).expanduser() if cache else home("AGL_CACHE") / ".cache" / "agentlightning"
    return folder.absolute() / "policies"


def folder_of(name: str, sha256: str, form: int) -> Path:
    """Return the folder of a policy: its name has a digest of the converted file and of the conversion."""
    digest = hashlib.sha256(f"{form}:{sha256}".encode()).hexdigest()
    return policies_folder() / f"{name}-{digest[:8]}"


def cached_policies() -> list[CachedPolicy]:
    """Return the policies in the cache, by path."""
    found = []
    for marker in sorted(policies_folder().glob(f"[!.]*/{_MARKER}")):
        try:
            origin = msgspec.json.decode(marker.read_bytes(), type=ModelOrigin)
        except (OSError, msgspec.DecodeError):  # another process removes it, or it is not ours
            continue
        found.append(CachedPolicy(marker.parent, origin))
    return found


def read_cached(folder: Path) -> CachedPolicy | None:
    """Return the policy in ``folder``; ``None`` if it is not in the cache."""
    return next((policy for policy in cached_policies() if policy.path == folder), None)


def cached_as(name: str) -> CachedPolicy | None:
    """Return the newest policy in the cache that has this name, or whose folder has."""
    named = [one for one in cached_policies() if name in (one.origin.name, one.path.name)]
    return max(named, key=lambda one: one.fetched, default=None)


def add_policy(folder: Path, fill: Callable[[Path], ModelOrigin]) -> CachedPolicy:
    """Let ``fill`` write a policy and return its origin, and put it into the cache as a whole.

    The caller holds the lock.
    """
    origins = []

    def write(draft: Path) -> None:
        origins.append(fill(draft))
        (draft / _MARKER).write_bytes(msgspec.json.format(msgspec.json.encode(origins[0])))

    return CachedPolicy(write_folder(folder, write), origins[0], new=True)


def remove_policy(policy: CachedPolicy) -> None:
    """Remove a policy from the cache. The caller holds the lock."""
    hidden = policy.path.with_name(f".unfinished-{policy.path.name}-removed")
    policy.path.rename(hidden)  # at once: nobody sees half a policy
    shutil.rmtree(hidden)


@contextmanager
def locked(waiting: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Hold the cache's lock; call ``waiting`` first if another process holds it. Yield the policies' folder.

    The kernel releases the lock when the process ends, however it ends. Drafts of killed processes are
    removed.
    """
    folder = policies_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        remove_unfinished(folder)
        yield folder
