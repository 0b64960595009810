"""What a run does, as a plain line for each event: at the terminal, and in the log of a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlightning.redaction import say
from agentlightning.types import Evaluation, StepReport

_FIGURES = {"reward_mean": "reward", "rows": "rows", "tokens": "tokens", "loss": "loss", "kl": "kl"}
"""Metrics of a step that its line has, where the step reports them."""


class LinesTracker:
    """Writes to stderr, so that a command's result on stdout stays machine-readable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, level: int, text: str) -> None:
        """Write a line. ``level``: as in :mod:`logging`."""
        say(text, file=sys.stderr)

    def start(self, run: Mapping[str, Any]) -> None:
        about = ", ".join(f"{name} {value}" for name, value in (run.get("about") or {}).items())
        self.write(logging.INFO, f"started: {about}")

    def resumed(
        self, run: Mapping[str, Any], reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
    ) -> None:
        done = f"{len(reports)} of {run.get('steps')} steps"
        self.write(logging.INFO, f"resumed after {done}; those after its checkpoint are made again")

    def step(self, report: StepReport) -> None:
        figures = [
            f"{name} {_short(report.metrics[key])}" for key, name in _FIGURES.items() if key in report.metrics
        ]
        self.write(
            logging.INFO,
            f"step {report.step + 1} of {report.policy}: {', '.join(figures)}{_failures(report)}, "
            f"{sum(report.seconds.values()):.1f} s",
        )

    def evaluated(self, evaluation: Evaluation) -> None:
        self.write(
            logging.INFO,
            f"evaluated {evaluation.name}: reward {evaluation.reward:.3f}{_failures(evaluation)}, "
            f"95 % {evaluation.interval_text()}, n {evaluation.n}",
        )

    def finish(self, summary: Mapping[str, Any]) -> None:
        for who, counts in (summary.get("accounts") or {}).items():
            self.write(
                logging.WARNING, f"counted {who}: {', '.join(f'{n} × {why}' for why, n in counts.items())}"
            )
        seconds = summary.get("total_seconds")
        ended = "finished" if summary.get("learned") is not False else "ended, nothing was learned,"
        after = "" if seconds is None else f" after {seconds:.1f} s"
        self.write(logging.INFO, f"{ended}{after}: {self.folder}")


def _failures(of: StepReport | Evaluation) -> str:
    """Return how many rollouts failed, and how these count."""
    return f" ({said})" if (said := of.failures_text()) else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() and abs(value) >= 10 else f"{value:.4g}"
