"""Brings a run back from object storage, to go on with it on another machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentlightning.train.artifacts.remote import RemoteRun


def fetch_run(place: str, output: Path, run_id: str, say: Callable[[str], None]) -> bool:
    """Fetch the newest complete snapshot of a run into ``output``; return whether there was one. A run that
    has a folder here is left as it is.
    """
    folder = output / run_id
    if folder.is_dir() and any(folder.iterdir()):
        return False
    remote = RemoteRun(place, run_id)
    remote.check()
    snapshot = remote.newest()
    if snapshot is None:
        return False
    if folder.is_dir():
        folder.rmdir()
    say(f"Fetching {run_id} from {place} ({snapshot.name}, {len(snapshot.files)} files)")
    remote.fetch(snapshot, folder)
    return True
