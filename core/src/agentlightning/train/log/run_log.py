"""Writes what a run does into its log files: its steps and evaluations, its end, and every log record.

The files get the log records that the terminal gets: warnings and errors, with ``agl -v`` also others.
A file that cannot be written is warned of once and never ends a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.redaction import shown
from agentlightning.train.log import NAME
from agentlightning.train.log.rotating import RotatingLog
from agentlightning.types import Evaluation, StepReport

log = logging.getLogger(__name__)
_FIGURES = {"reward_mean": "reward", "rows": "rows", "tokens": "tokens", "loss": "loss", "kl": "kl"}
"""Metrics of a step that its line has, where the step reports them."""


class RunLog:
    """The handlers of one run's log files, and the hooks that write into them."""

    def __init__(self, run_id: str, files: list[Path]) -> None:
        self.run_id, self.handlers = run_id, list[logging.Handler]()
        form = _Lines(run_id)
        for file in files:
            try:
                handler = RotatingLog(file)
            except OSError as error:
                log.warning("no log in %s: %s", file, error)
                continue
            handler.setFormatter(form)
            self.handlers.append(handler)

    def write(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Write a line into every file; with ``error`` its traceback below it."""
        raised = error and (type(error), error, error.__traceback__)
        record = logging.LogRecord("run", level, "", 0, text, (), raised or None)
        for handler in self.handlers:
            handler.handle(record)

    @hookimpl
    def agl_run_started(self, run: dict[str, Any]) -> None:
        about = ", ".join(f"{name} {value}" for name, value in (run.get("about") or {}).items())
        self.write(logging.INFO, f"started: {about}")

    @hookimpl
    def agl_run_resumed(self, run: dict[str, Any], reports: list[StepReport]) -> None:
        self.write(logging.INFO, f"resumed after {len(reports)} of {run.get('steps')} steps")

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        figures = [
            f"{name} {_short(report.metrics[key])}" for key, name in _FIGURES.items() if key in report.metrics
        ]
        self.write(
            logging.INFO,
            f"step {report.step + 1} of {report.policy}: {', '.join(figures)}{_failures(report)}, "
            f"{sum(report.seconds.values()):.1f} s",
        )

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        self.write(
            logging.INFO,
            f"evaluated {evaluation.name}: reward {evaluation.reward:.3f}{_failures(evaluation)}, "
            f"95 % {evaluation.interval_text()}, n {evaluation.n}",
        )

    @hookimpl
    def agl_checkpoint_saved(self, folder: Path, step: int) -> None:
        self.write(logging.INFO, f"checkpoint: {folder}")

    @hookimpl
    def agl_run_finished(self, summary: dict[str, Any]) -> None:
        for who, counts in (summary.get("accounts") or {}).items():
            self.write(
                logging.WARNING, f"counted {who}: {', '.join(f'{n} × {why}' for why, n in counts.items())}"
            )
        seconds = summary.get("total_seconds")
        ended = "finished" if summary.get("learned") is not False else "ended, nothing was learned,"
        self.write(logging.INFO, ended if seconds is None else f"{ended} after {seconds:.1f} s")


@contextmanager
def run_log(folder: Path, all_runs: Path | None) -> Iterator[RunLog]:
    """Log a run into ``folder`` and ``all_runs`` while the block runs, also how it broke off."""
    run = RunLog(folder.name, [folder / NAME, *([all_runs] if all_runs else [])])
    root = logging.getLogger()
    for handler in run.handlers:
        root.addHandler(handler)
    try:
        yield run
    except BaseException as error:
        expected = isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)
        run.write(logging.ERROR, f"broken off: {_reason(error)}", None if expected else error)
        raise
    finally:
        for handler in run.handlers:
            root.removeHandler(handler)
            handler.close()


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


def _failures(of: StepReport | Evaluation) -> str:
    """Return how many rollouts failed, and how these count."""
    return f" ({said})" if (said := of.failures_text()) else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() and abs(value) >= 10 else f"{value:.4g}"


def _reason(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
