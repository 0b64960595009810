"""One check's result, the worst of several, and the report of an examination.

Invariant: a check that failed or warns says what to do about it.
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
    """What one check found."""

    name: str
    status: Status
    title: str = ""
    """The finding in one line."""
    detail: list[str] = []
    """Facts behind it, a line each."""
    advice: list[str] = []
    """What to do, a line each; never empty for ``warn`` and ``fail``."""
    seconds: float = 0.0
    data: dict[str, Any] = {}
    """The figures, for machines."""


@dataclass(slots=True)
class Notes:
    """Collects the lines of a check while it looks; the worst of them is its status."""

    status: Status = "ok"
    detail: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def fact(self, line: str) -> None:
        """Something worth showing, neither good nor bad."""
        self.detail.append(line)

    def warn(self, problem: str, advice: str) -> None:
        """Something that will cost, and what to do about it."""
        self._problem("warn", problem, advice)

    def fail(self, problem: str, advice: str) -> None:
        """Something that makes the run impossible or pointless, and what to do about it."""
        self._problem("fail", problem, advice)

    def _problem(self, status: Status, problem: str, advice: str) -> None:
        self.status = worst([self.status, status])
        if problem not in self.problems:
            self.problems.insert(0 if status == "fail" else len(self.problems), problem)
        if advice not in self.advice:
            self.advice.append(advice)

    def check(self, name: str, title: str, **data: Any) -> Check:
        """What these notes amount to. Its line is ``title`` if all is well, else the first problem."""
        return Check(
            name=name,
            status=self.status,
            title=self.problems[0] if self.problems else title,
            detail=[*self.problems[1:], *([title] if self.problems and title else []), *self.detail],
            advice=self.advice,
            data=data,
        )


class Report(JsonDump, msgspec.Struct, kw_only=True):
    """All checks of one examination."""

    ok: bool
    """Nothing failed: training is possible and not pointless, as far as this probe can tell."""
    checks: list[Check]
    suggested_group_size: int | None = None
    forecast: dict[str, Any] = {}

    @property
    def verdict(self) -> str:
        """The examination in a sentence."""
        failed = [c for c in self.checks if c.status == "fail"]
        if failed:
            return f"Do not train yet: {failed[0].title}"
        warned = [c.name for c in self.checks if c.status == "warn"]
        ready = "Ready to train" if any(c.name == "reward" for c in self.checks) else "This machine is ready"
        return f"{ready}; look at {', '.join(warned)} first" if warned else f"{ready}."


def worst(statuses: Sequence[Status]) -> Status:
    """The status that decides."""
    return max(statuses, key=_WORSE.index, default="ok")


def failure(name: str, error: Exception) -> Check:
    """An error that ended a check, as its result."""
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
