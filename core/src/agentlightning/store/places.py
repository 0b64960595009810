"""What ``AGL_STORAGE`` names: a store, or where the files of runs are kept.

A folder, a file, and a URL of a store's scheme (``sqlite``, ``http``, ``postgresql``, …) name a store. A URL
of object storage (``s3``, …) is where checkpoints, policies, logs and snapshots of runs' stores are kept;
rows then stay in SQLite. A place is shown and kept by :func:`agentlightning.redaction.redacted`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from agentlightning.store.base import StoreError
from agentlightning.types import UsageError

VARIABLE: Final = "AGL_STORAGE"
ARTIFACT_SCHEMES: Final = ("s3", "gs", "gcs", "az", "abfs", "file")
"""Schemes of places for files, as fsspec names them."""


PATIENCE: Final = 60.0
"""Seconds; ``AGL_STORE_PATIENCE`` overrides it."""


def store_place() -> str | None:
    """Return the place of the default store; ``None``: the variable names none."""
    given = os.environ.get(VARIABLE)
    return given if given and not is_artifact_place(given) else None


def artifact_place() -> str | None:
    """Return the URL at which the files of runs are kept; ``None``: only in the runs' folders."""
    given = os.environ.get(VARIABLE)
    return given if given and is_artifact_place(given) else None


def find_home() -> Path | None:
    """Return this user's home; ``None`` for an id without an entry and ``HOME``, as in containers."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def home(variable: str) -> Path:
    """Return this user's home. ``variable``: what else names the place that is looked for, for the error."""
    found = find_home()
    if found is None:
        raise UsageError(f"user id {os.getuid()} has no home folder: set {variable} to a folder, or HOME")
    return found


def patience_from_env() -> float:
    """Return the seconds for which a store that cannot be reached is tried again: ``AGL_STORE_PATIENCE``."""
    text = os.environ.get("AGL_STORE_PATIENCE")
    try:
        seconds = PATIENCE if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise StoreError(f"AGL_STORE_PATIENCE is {text!r}; give a number of seconds, 0 or more")
    return seconds


def is_artifact_place(place: str) -> bool:
    """Return whether a place is one for files, and not a store."""
    scheme, is_url, _ = place.partition("://")
    return bool(is_url) and scheme in ARTIFACT_SCHEMES
