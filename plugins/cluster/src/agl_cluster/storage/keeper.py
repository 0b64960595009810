"""Keeps a run's files in object storage: a snapshot after each checkpoint, and one at the end.

The upload has a thread of its own. Invariants: it never ends a run and never holds one up, but at the end; a
checkpoint that is deleted meanwhile is still uploaded whole (its files are linked first); what fails is tried
again, then counted and told.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agentlightning.hookspecs import hookimpl
from agl_cluster.storage.remote import (
    FORMAT,
    KeptFile,
    RemoteRun,
    Snapshot,
    describe,
    sha256_of,
    written,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
TRIES = 5
"""Uploads of one file."""
FIRST_PAUSE = 1.0
"""Seconds before the second try; doubled each time."""
ACCOUNTS = "storage.json"
STORE = "store.sqlite"
_DRAFTS = ".kept"
_CHECKPOINTS = "checkpoints"
_LEFT_OUT = (".lock", "-wal", "-shm", "-journal")


class _Wanted(NamedTuple):
    """A snapshot to make. ``links``: hard links of its checkpoint; ``at``: where that lies in the run."""

    step: int | None
    links: Path | None = None
    at: str = ""


@asynccontextmanager
async def keeping(
    place: str, output: Path, run_id: str | None, say: Callable[[str], None]
) -> AsyncIterator[ArtifactKeeper]:
    """Keep the run that begins meanwhile; first fetch the run ``run_id`` that resumes, if it is not here.
    Raise :class:`StorageError` where the place cannot be used.
    """
    if run_id is not None:
        await asyncio.to_thread(fetch_run, place, output, run_id, say)
    await asyncio.to_thread(RemoteRun(place, run_id or "any").check)
    keeper = ArtifactKeeper(place, output, say)
    try:
        yield keeper
    finally:
        await asyncio.to_thread(keeper.close)


class ArtifactKeeper:
    """Listens to a run and keeps its folder, which is in ``output``, at ``place``. ``say`` prints a line for
    the person.

    ``counts``: ``snapshots``, ``files`` and ``bytes`` (uploaded), ``retried``, ``failed`` (snapshots),
    ``skipped`` (checkpoints that a newer one overtook), ``pruned`` (objects), ``prune-failed``.
    """

    def __init__(self, place: str, output: Path, say: Callable[[str], None]) -> None:
        self.counts: Counter[str] = Counter(snapshots=0, skipped=0, failed=0, retried=0)
        self._place, self._output, self._say = place, output, say
        self._wanted: queue.Queue[_Wanted | None] = queue.Queue()
        self._known: dict[str, KeptFile] = {}
        """File → what the last complete snapshot says of it."""
        self._thread: threading.Thread | None = None

    def begin(self, run_id: str) -> None:
        """Keep this run from now on."""
        self._remote = RemoteRun(self._place, run_id)
        self._folder = (self._output / run_id).resolve()
        self._thread = threading.Thread(target=self._work, name="artifacts", daemon=True)
        self._thread.start()

    @hookimpl
    def agl_run_started(self, run: dict[str, Any]) -> None:
        self.begin(run["run_id"])

    @hookimpl
    def agl_run_resumed(self, run: dict[str, Any]) -> None:
        self.begin(run["run_id"])

    @hookimpl
    def agl_checkpoint_saved(self, folder: Path, step: int) -> None:
        """Have the checkpoint uploaded; its files are linked now, because it may be deleted later."""
        draft = self._folder / _DRAFTS / f"{time.monotonic_ns()}"
        at = os.path.relpath(folder, self._folder)
        if at.startswith(".."):
            self.counts["failed"] += 1
            log.warning("checkpoint %s lies outside the run and is not kept", folder)
            return
        shutil.copytree(folder, draft, copy_function=_link)
        self._wanted.put(_Wanted(step, draft, at))

    def close(self) -> None:
        """Make the last snapshot, of all that the run has written, and wait for it. A run that never started
        has none.
        """
        if self._thread is None:
            return
        self._wanted.put(_Wanted(None))
        self._wanted.put(None)
        self._thread.join()
        shutil.rmtree(self._folder / _DRAFTS, ignore_errors=True)
        text = written(self.counts, self._remote.place)
        (self._folder / ACCOUNTS).write_text(text, encoding="utf-8")
        if self.counts["snapshots"]:
            self._say(f"Kept at {self._remote.place}/{self._folder.name}")
        if self.counts["failed"]:
            self._say(f"{self.counts['failed']} snapshots were not kept at {self._remote.place}: see the log")

    # ---------------------------------------------------------------------------------------- in the thread
    def _work(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                if wanted.step is not None and not self._wanted.empty():
                    self.counts["skipped"] += 1  # a newer one waits
                    continue
                self._keep(wanted)
                self.counts["snapshots"] += 1
            except Exception as error:
                self.counts["failed"] += 1
                log.warning("a snapshot of %s failed: %s", self._folder.name, describe(error))
            else:
                self._prune()
            finally:
                if wanted.links is not None:
                    shutil.rmtree(wanted.links, ignore_errors=True)

    def _prune(self) -> None:
        """Delete what no snapshot needs; what cannot be deleted lies there until the next time."""
        try:
            self.counts["pruned"] += self._tried(self._remote.prune)
        except Exception as error:
            self.counts["prune-failed"] += 1
            log.warning("old snapshots of %s were not deleted: %s", self._folder.name, describe(error))

    def _keep(self, wanted: _Wanted) -> None:
        """Upload a snapshot, its manifest last."""
        name = self._tried(lambda: self._remote.next_name(wanted.step))
        files: dict[str, KeptFile] = {}
        with tempfile.TemporaryDirectory() as drafts:
            for relative, file in self._files(wanted, Path(drafts)):
                known = self._known.get(relative)
                if (
                    known is not None
                    and known.size == file.stat().st_size
                    and known.sha256 == sha256_of(file)
                ):
                    files[relative] = known
                    continue
                files[relative] = self._tried(partial(self._remote.put, name, relative, file))
                self.counts["files"] += 1
                self.counts["bytes"] += files[relative].size
        snapshot = Snapshot(FORMAT, self._folder.name, name, wanted.step, files)
        self._tried(lambda: self._remote.commit(snapshot))
        self._known = files

    def _files(self, wanted: _Wanted, drafts: Path) -> Iterator[tuple[str, Path]]:
        """Yield the files of a snapshot by their names in the run. Files that may grow are copied first."""
        if wanted.links is not None:
            for file in _below(wanted.links):
                yield f"{wanted.at}/{file.relative_to(wanted.links)}", file
        for number, file in enumerate(_below(self._folder)):
            relative = file.relative_to(self._folder)
            top = relative.parts[0]
            if top == _DRAFTS or file.name.endswith(_LEFT_OUT):
                continue
            if wanted.links is not None and (
                top == _CHECKPOINTS or str(relative).startswith(wanted.at + "/")
            ):
                continue
            copy = drafts / str(number)
            if file.name == STORE:
                _copy_store(file, copy)
            else:
                shutil.copyfile(file, copy)
            yield str(relative), copy
            copy.unlink()

    def _tried(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; tried again after an error."""
        pause = FIRST_PAUSE
        for left in range(TRIES - 1, -1, -1):
            try:
                return work()
            except Exception as error:
                if not left:
                    raise
                self.counts["retried"] += 1
                log.info("%s: %s; trying again in %g s", self._remote.place, describe(error), pause)
                time.sleep(pause)
                pause *= 2
        raise AssertionError("there is no such end of the loop")


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _copy_store(file: Path, target: Path) -> None:
    """Copy a SQLite file as it is at one moment, while another connection writes it."""
    source = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    with closing(source), closing(sqlite3.connect(target)) as copy:
        source.backup(copy, pages=1024)


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
