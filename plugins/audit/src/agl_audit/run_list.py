"""List runs: one line for each, from its record and the reports of its steps.

Invariant: an unreadable store is listed with its reason and never hides the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentlightning.plugins.manager import Plugins
from agentlightning.redaction import redacted
from agentlightning.store.sqlite.lock import holder_of
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import StepReport, UsageError
from agentlightning.types.base import Model
from agl_audit.behaviour.alarms import Alarm, alarms_of
from agl_audit.locations import ALL, RunLocation, opened

STOPPED = "stopped by budget"
"""Beginning of ``ended`` in the summary of a run that its budget ended."""
LEARNED_NOTHING = "learned nothing"
"""Status of a run that made its steps and trained no token."""


class RunSummary(Model):
    """One run, as ``agl runs`` shows it."""

    run: str
    store: str
    when: float | None = None
    """Seconds since the epoch."""
    agent: str = ""
    recipe: str = ""
    policies: list[str] = []
    """Names of the policies that it trains, if they have names."""
    steps: int = 0
    planned: int | None = None
    before: float | None = None
    after: float | None = None
    """Held-out reward before and after training."""
    evaluated: float | None = None
    """Reward of the only evaluation, of a run of `agl eval`."""
    training: float | None = None
    """Mean training reward of the last step."""
    status: str = "broken off"
    """``running, finished, learned nothing, stopped by budget, broken off, unreadable``."""
    seconds: float | None = None
    spent: dict[str, float] = {}
    """Calls, tokens, money and seconds, of a run with a budget."""
    alarms: list[Alarm] = []
    """Those that its behaviour raised."""
    reason: str | None = None
    """Why it could not be read."""


def to_show(line: RunSummary) -> RunSummary:
    """Return the line without a password in its store's place."""
    return msgspec.structs.replace(line, store=redacted(line.store))


async def list_runs(places: Sequence[RunLocation], plugins: Plugins | None = None) -> list[RunSummary]:
    """List every run of every place, newest first."""
    lines: list[RunSummary] = []
    for place in places:
        try:
            async with opened(place.store, plugins) as store:
                infos = await store.query_runs(limit=ALL)
                steps = [await store.query_steps(info["run_id"]) for info in infos]
                pairs = zip(infos, steps, strict=True)
                lines += [summarise(info, reports, store, place) for info, reports in pairs]
        except (UsageError, OSError, ValueError) as error:
            name = place.folder.name if place.folder else redacted(place.store)
            lines.append(RunSummary(run=name, store=place.store, status="unreadable", reason=str(error)))
    return sorted(lines, key=lambda line: line.when or 0.0, reverse=True)


def summarise(
    info: Mapping[str, Any], reports: Sequence[StepReport], store: object, place: RunLocation
) -> RunSummary:
    """Return the line of a run, from its record and the reports of its steps in the open ``store``."""
    summary = info.get("summary") or {}
    about = info.get("about") or {}
    recipe = info.get("recipe") or {}
    rewards = [r.metrics["reward_mean"] for r in reports if "reward_mean" in r.metrics]
    seconds = summary.get("total_seconds")
    if seconds is None and info.get("create_time"):
        seconds = sum(sum(r.seconds.values()) for r in reports) or None
    return RunSummary(
        run=info["run_id"],
        store=place.store,
        when=info.get("create_time"),
        agent=str(about.get("agent", "")),
        recipe=str(recipe.get("name", "")) if isinstance(recipe, dict) else str(recipe),
        policies=list(info.get("trained") or ()),
        steps=len({r.step for r in reports}),
        planned=info.get("steps"),
        before=_finite(summary.get("reward_before")),
        after=_finite(summary.get("reward_after")),
        evaluated=_finite((summary.get("evaluation") or {}).get("reward")),
        training=_finite(rewards[-1]) if rewards else None,
        status=_status(summary, store),
        seconds=seconds,
        alarms=alarms_of(info),
        spent=(summary.get("budget") or info.get("budget") or {}).get("spent", {}),
    )


def _status(summary: Mapping[str, Any], store: object) -> str:
    if str(summary.get("ended", "")).startswith(STOPPED):
        return STOPPED
    if summary.get("learned") is False:
        return LEARNED_NOTHING
    return "finished" if summary else "running" if _in_use(store) else "broken off"


def _in_use(store: object) -> bool:
    """Whether a process writes the store, which is then most likely training."""
    if not isinstance(store, SQLiteStore):
        return True
    return store.db.path is not None and holder_of(store.db.path) is not None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
