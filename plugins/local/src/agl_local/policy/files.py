"""Folders that are either there, whole, or not there at all.

Invariant: a reader never sees a half-written folder, and a finished one survives a power cut (files, then the
rename, are forced to disk in that order).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from agl_local.network.config import ADAPTER

_MARK = ".unfinished-"
_OLD = "old-"


def is_adapter(folder: Path) -> bool:
    """Whether ``folder`` holds matrices of LoRA and no model."""
    return (folder / ADAPTER).is_file() and not (folder / "config.json").exists()


def write_folder(target: Path, fill: Callable[[Path], None]) -> Path:
    """Let ``fill`` write into a fresh folder beside ``target``, then put it in place of ``target`` in one
    rename.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f"{_MARK}{target.name}-{secrets.token_hex(4)}"
    draft.mkdir()
    try:
        fill(draft)
        for path in draft.rglob("*"):
            sync(path)
        sync(draft)
        _replace(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync(target.parent)
    return target


def remove_unfinished(parent: Path, name: str = "*") -> int:
    """Clear away what killed writers left in ``parent``, or only of the folder ``name`` (a pattern); it must
    have one writer. Returns how many.

    A folder that was about to be replaced when its writer was killed gets its name back.
    """
    drafts = {path for old in ("", _OLD) for path in parent.glob(f"{_MARK}{old}{name}-*") if path.is_dir()}
    left = sorted(drafts)
    for path in left:
        target = parent / path.name.removeprefix(f"{_MARK}{_OLD}").rpartition("-")[0]
        if path.name.startswith(f"{_MARK}{_OLD}") and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path)
    return len(left)


def sha256_of(path: Path) -> str:
    """Return the digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Force a file or a folder's entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace(draft: Path, target: Path) -> None:
    """A folder cannot be renamed onto one that has content: the old one steps aside first."""
    if not target.exists():
        draft.rename(target)
        return
    aside = target.parent / f"{_MARK}{_OLD}{target.name}-{secrets.token_hex(4)}"
    target.rename(aside)
    draft.rename(target)
    shutil.rmtree(aside)
