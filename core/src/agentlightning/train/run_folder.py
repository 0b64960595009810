"""Run folders: the files of a run, and the lock of the process that trains it.

``<output>/<run id>/`` holds the run's store, metrics, checkpoints and summary. Invariants: one process trains
a run at a time; a folder is never trained into by another run; a start that is refused leaves no folder.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentlightning.redaction import shown
from agentlightning.store.sqlite.lock import FileLock, Locked
from agentlightning.types import UsageError
from agentlightning.types.base import nearest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class RunError(UsageError):
    """A run that cannot begin or resume; the message says what to do."""


@dataclass(slots=True)
class RunFolder:
    """A run's folder, locked by this process. ``resumed``: the folder existed before."""

    run_id: str
    folder: Path
    resumed: bool
    lock: FileLock
    created_parents: list[Path] = field(default_factory=list)
    """Parent folders that were made for this run, the innermost first."""
    started: bool = False
    """Whether the run can be resumed: a start that is refused earlier leaves no folder."""

    def close(self) -> None:
        """Release the lock; remove the folder of a new run that did not start."""
        if not self.resumed and not self.started:
            shutil.rmtree(self.folder, ignore_errors=True)
            for above in self.created_parents:
                with suppress(OSError):  # another run lies in it by now
                    above.rmdir()
        self.lock.release()


def open_run_folder(
    output: Path, name: str, seed: int, *, run: str | None = None, resume: bool = False
) -> RunFolder:
    """Make and lock the folder of a new run; with ``resume``, lock the folder of a run that exists.

    ``run``: the run's id. Without it, a new run is named after time, ``name`` and ``seed``, and ``resume``
    takes the latest run of ``name`` and ``seed``. Raises :class:`RunError` if the folder cannot be used.
    """
    created_parents = [above for above in (output, *output.parents) if not above.exists()]
    if run is not None and not _NAME.fullmatch(run):
        raise RunError(
            f"run {run!r}: use letters, digits, '.', '_' and '-', at most 100, a letter or digit first"
        )
    if run is None and not _NAME.fullmatch(name):
        raise RunError(
            f"agent.name {name!r}: it names the run's folder; use letters, digits, '.', '_' and '-'"
        )
    if run is None and resume:
        folder = _latest(output, f"{name}-s{seed}")
    elif run is None:
        folder = _make_unused(output / (time.strftime("%Y%m%d-%H%M%S") + f"-{name}-s{seed}"))
        return _lock(folder, False, created_parents)
    else:
        folder = output / run
    there = folder.is_dir() and any(folder.iterdir())
    if there and not resume:
        raise RunError(f"{folder} exists: go on with it (--resume), or choose another run id")
    if resume and not folder.is_dir():
        raise _no_such_run(output, folder.name)
    _make(folder)
    return _lock(folder, there, created_parents)


def new_run_folder(output: Path, name: str) -> RunFolder:
    """Make and lock the folder of a new run, named after time and ``name``."""
    created_parents = [above for above in (output, *output.parents) if not above.exists()]
    return _lock(_make_unused(output / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"), False, created_parents)


def _no_such_run(output: Path, name: str) -> RunError:
    """Return the error for a run that does not exist, with the most similar name."""
    known = sorted((p.name for p in output.glob("*") if p.is_dir()), reverse=True) if output.is_dir() else []
    near = nearest(name, known)
    meant = f" Did you mean {near}?" if near else f" It holds {', '.join(known[:4])}." if known else ""
    return RunError(
        f"nothing to resume: {output} holds no run {name}; to begin it, leave --resume out.{meant}"
    )


def _lock(folder: Path, resumed: bool, created_parents: Sequence[Path] = ()) -> RunFolder:
    folder = folder.resolve()
    try:
        lock = FileLock(folder / "run")
    except Locked as error:
        raise RunError(
            f"run {folder.name} is being trained already, by process {error.holder.pid or 'unknown'}"
        ) from None
    return RunFolder(folder.name, folder, resumed, lock, list(created_parents))


def _latest(output: Path, ending: str) -> Path:
    """Return the newest folder of a run whose generated id ends in ``ending``."""
    stamped = re.compile(r"\d{8}-\d{6}-" + re.escape(ending) + r"(-\d+)?")
    found = [p for p in output.glob("*") if stamped.fullmatch(p.name)] if output.is_dir() else []
    if not found:
        raise RunError(
            f"nothing to resume: {output} holds no run of {ending}; name one with --run, or begin one"
        )
    return max(found, key=lambda p: (p.name[:15], len(p.name), p.name))


def _make_unused(folder: Path) -> Path:
    """Make ``folder``; if it exists already, the next free ``folder-2``, …"""
    candidate, n = folder, 1
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate
        except FileExistsError:
            n += 1
            candidate = folder.with_name(f"{folder.name}-{n}")
        except OSError as error:
            raise _cannot_make(candidate, error) from None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_make(folder, error) from None


def _cannot_make(folder: Path, error: OSError) -> RunError:
    return RunError(f"cannot make the run's folder {folder}: {error}; choose another `output`")


def say(line: str) -> None:
    """Print a line for the person at the terminal."""
    print(shown(line), file=sys.stderr)
