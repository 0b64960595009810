"""Results of checks, and the report of an examination.

Invariant: a check that failed or warns gives advice.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentlightning.types import UsageError
from agentlightning.types.base import JsonDump

Status = Literal["ok", "warn", "fail", "skipped"]
_WORSE: tuple[Status, ...] = ("ok", "skipped", "warn", "fail")


class Check(JsonDump, msgspec.Struct, kw_only=True):
    """The result of one check."""

    name: str
    status: Status
    title: str = ""
    """The finding in one line."""
    detail: list[str] = []
    """Supporting facts, one per line."""
    advice: list[str] = []
    """Advice, one per line; never empty for ``warn`` and ``fail``."""
    seconds: float = 0.0
    data: dict[str, Any] = {}
    """Figures for machines."""


@dataclass(slots=True)
class Notes:
    """Collects the findings of a check; its status is that of the worst one."""

    status: Status = "ok"
    detail: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def fact(self, line: str) -> None:
        """Add a neutral fact."""
        self.detail.append(line)

    def warn(self, problem: str, advice: str) -> None:
        """Add a problem that will cost something, with advice."""
        self._problem("warn", problem, advice)

    def fail(self, problem: str, advice: str) -> None:
        """Add a problem that makes the run impossible or pointless, with advice."""
        self._problem("fail", problem, advice)

    def _problem(self, status: Status, problem: str, advice: str) -> None:
        self.status = worst([self.status, status])
        if problem not in self.problems:
            self.problems.insert(0 if status == "fail" else len(self.problems), problem)
        if advice not in self.advice:
            self.advice.append(advice)

    def check(self, name: str, title: str, **data: Any) -> Check:
        """Make the check's result. Its title is the first problem, or ``title`` if there is none."""
        return Check(
            name=name,
            status=self.status,
            title=self.problems[0] if self.problems else title,
            detail=[*self.problems[1:], *([title] if self.problems and title else []), *self.detail],
            advice=self.advice,
            data=data,
        )


class Report(JsonDump, msgspec.Struct, kw_only=True):
    """The checks of one examination."""

    ok: bool
    """No check failed: training is possible and, as far as the probe can tell, not pointless."""
    checks: list[Check]
    suggested_group_size: int | None = None
    forecast: dict[str, Any] = {}

    @property
    def verdict(self) -> str:
        """Return the verdict in one sentence."""
        failed = [c for c in self.checks if c.status == "fail"]
        if failed:
            return f"Do not train yet: {failed[0].title}"
        warned = [c.name for c in self.checks if c.status == "warn"]
        ready = "Ready to train" if any(c.name == "reward" for c in self.checks) else "This machine is ready"
        return f"{ready}; look at {', '.join(warned)} first" if warned else f"{ready}."


def worst(statuses: Sequence[Status]) -> Status:
    """Return the worst status."""
    return max(statuses, key=_WORSE.index, default="ok")


def failure(name: str, error: Exception) -> Check:
    """Return an error that ended a check as its result."""
    if isinstance(error, UsageError):
        lines = str(error).splitlines() or ["no message"]
        return Check(
            name=name, status="fail", title=lines[0], detail=lines[1:], advice=["Mend that, then run again."]
        )
    title, *rest = str(error).splitlines() or ["no message"]
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return Check(
        name=name,
        status="fail",
        title=f"{type(error).__name__}: {title}",
        detail=[*rest[:12], *(f"at {Path(f.filename).name}:{f.lineno}, in {f.name}" for f in frames)],
        advice=["This check could not be carried out, and nothing can be said about what comes after it."],
    )
