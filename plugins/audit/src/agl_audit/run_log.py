"""The log of runs: ``training.log`` in a run's folder, and one file for all runs of this user.

Each line is a time, a run, a level and a text: the run's steps, evaluations and end, and the log records
that the terminal gets (warnings and errors, with ``agl -v`` also others). Records of more lines go on with
indented ones. Invariants: a line is written whole, to the file that has the name at that moment or to the one
just renamed; a file that cannot be written is warned of once and never ends a run.
"""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.redaction import shown
from agentlightning.store.places import find_home
from agentlightning.trackers import TrackerHooks
from agentlightning.trackers.lines import LinesTracker
from agentlightning.types.sections import Section
from agl_audit.behaviour.alarms import alarms_of

NAME = "training.log"
VARIABLE = "AGL_LOG"
BYTES = 10_000_000
"""Size at which a file is renamed to ``<name>.1``."""
KEPT = 3
"""Renamed files that are kept."""
log = logging.getLogger(__name__)


class LoggedRun(Section):
    """Where runs are logged."""

    log: str | Path | None = None
    """Log file of all runs; none: that of ``AGL_LOG``, else ``~/.agent-lightning/logs/training.log``; an
    empty text: no such file. Every run has a ``training.log`` in its folder."""


def log_of_all_runs(given: str | Path | None = None) -> Path | None:
    """Return the file for all runs: the given one, that of ``AGL_LOG``, or
    ``~/.agent-lightning/logs/training.log``. ``None`` if the given one is an empty text, or if there is none
    and this user has no home: no such file.
    """
    given = os.environ.get(VARIABLE) if given is None else given
    if given is None:
        home = find_home()
        return None if home is None else home / ".agent-lightning" / "logs" / NAME
    return Path(given).expanduser() if str(given) and str(given) != "." else None


class RunLog(LinesTracker):
    """Writes the lines of one run into its log files."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        super().__init__(folder)
        self.handlers = list[logging.Handler]()
        for file in files:
            try:
                handler = RotatingLog(file)
            except OSError as error:
                log.warning("no log in %s: %s", file, error)
                continue
            handler.setFormatter(_Lines(folder.name))
            self.handlers.append(handler)

    def finish(self, summary: Mapping[str, Any]) -> None:
        for alarm in alarms_of(summary):
            self.write(logging.WARNING, f"alarm: {alarm.text()}")
        super().finish(summary)

    def write(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Write a line into every file; with ``error`` its traceback below it."""
        raised = error and (type(error), error, error.__traceback__)
        record = logging.LogRecord("run", level, "", 0, text, (), raised or None)
        for handler in self.handlers:
            handler.handle(record)


class Logging(TrackerHooks):
    """Listens to a run, and has its log write what it hears."""

    def __init__(self, run: RunLog) -> None:
        super().__init__([run])
        self._run = run

    @hookimpl
    def agl_checkpoint_saved(self, folder: Path, step: int) -> None:
        self._run.write(logging.INFO, f"checkpoint: {folder}")


@asynccontextmanager
async def logging_run(folder: Path, all_runs: Path | None) -> AsyncIterator[Logging]:
    """Log a run while the block runs (:func:`run_log`); what is yielded listens to its hooks."""
    with run_log(folder, all_runs) as run:
        yield Logging(run)


@contextmanager
def run_log(folder: Path, all_runs: Path | None) -> Iterator[RunLog]:
    """Log a run into ``folder`` and ``all_runs`` while the block runs, also how it broke off."""
    run = RunLog(folder, [folder / NAME, *([all_runs] if all_runs else [])])
    root = logging.getLogger()
    for handler in run.handlers:
        root.addHandler(handler)
    try:
        yield run
    except BaseException as error:
        expected = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
        first = (str(error).strip().splitlines() or [""])[0]
        why = f"{type(error).__name__}: {first}" if first else type(error).__name__
        run.write(logging.ERROR, f"broken off: {why}", None if expected else error)
        raise
    finally:
        for handler in run.handlers:
            root.removeHandler(handler)
            handler.close()


class RotatingLog(logging.handlers.WatchedFileHandler):
    """Appends records to a file that several processes write and that never grows without bound. Whoever
    finds it too large renames it, under a lock on ``<name>.lock``; the others notice by the file's identity
    and open the new one.
    """

    def __init__(self, path: Path, *, most_bytes: int = BYTES, kept: int = KEPT) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.most_bytes, self.kept = most_bytes, kept
        self.path = path
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and rotate before it where the file is full. Errors are handled as logging's."""
        try:
            if self._is_full():
                self._rotate()
        except OSError:
            self.handleError(record)
        super().emit(record)

    def _is_full(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size >= self.most_bytes

    def _rotate(self) -> None:
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_full():  # another process has renamed it meanwhile
                return
            for number in range(self.kept, 0, -1):
                older = f"{self.path}.{number - 1}" if number > 1 else str(self.path)
                if os.path.exists(older):
                    os.replace(older, f"{self.path}.{number}")
        finally:
            os.close(lock)


class _Lines(logging.Formatter):
    """``2026-01-31 12:00:00 run INFO text``; further lines of a record are indented."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self.run_id = run_id

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        source = "" if record.name == "run" else f"{record.name}: "
        text = super().format(record).replace("\n", "\n    ")
        return shown(f"{when} {self.run_id} {record.levelname} {source}{text}")
