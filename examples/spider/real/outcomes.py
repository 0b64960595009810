"""What the agent did with each question of an evaluation, read from the run's store.

    python -m spider.real.outcomes RUN [--against RUN] [--out FILE]

``RUN`` is a run, or a file that ``--out`` wrote. Prints how many of the first and of the last queries ran
and were right, in how many groups rewards differ, and why queries failed. ``--against`` an earlier
evaluation of the same questions adds the difference of the paired rewards with its interval over databases.
``--out`` keeps every question with its queries, one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.algorithms.intervals import mean_interval
from agentlightning.types import Record, UsageError
from agl_audit.run import open_run
from spider.databases import databases_of
from spider.sql.execution import SqlError, run as run_sql
from spider.sql.matching import match

BATCH = 256
"""Records that are read at a time."""
KINDS = ("no such column", "no such table", "syntax error", "misuse of aggregate", "ambiguous column name")
"""How the database's errors begin, or what they hold."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """One rollout: what was written in order, and what it was worth."""

    id: str
    db_id: str
    question: str
    gold: str
    evaluation: str
    """Its name: ``before``, ``after``, …"""
    sample: int
    tables: str
    """What the node ``link`` said."""
    queries: tuple[str, ...]
    errors: tuple[str, ...]
    """What the database said of each query; empty for one that ran."""
    rewards: tuple[float, ...]
    """What each query would have earned as the last one."""

    @property
    def first(self) -> float:
        return self.rewards[0]

    @property
    def last(self) -> float:
        return self.rewards[-1]


async def outcomes(place: str, mode: str = "val") -> list[Outcome]:
    """Return what a run's rollouts of ``mode`` did, by evaluation, question and sample. Those that did not
    succeed are not among them; a warning says how many they are. ``place``: also a file of :func:`write`.
    """
    if place.endswith(".jsonl"):
        return read(Path(place))
    async with open_run(place) as run:
        rollouts = await run.store.query_rollouts(run_id=run.run_id, mode=mode, limit=100_000)
        ids = [one.rollout_id for one in rollouts if one.status == "succeeded"]
        if left := len(rollouts) - len(ids):
            _log.warning("%s: %d of %d rollouts left out: they did not succeed", place, left, len(rollouts))
        found = []
        for at in range(0, len(ids), BATCH):
            found += [outcome(record) for record in await run.store.records(ids[at : at + BATCH])]
    return sorted(found, key=lambda one: (one.evaluation, one.id, one.sample))


def outcome(record: Record) -> Outcome:
    """Return what one rollout did: its queries are run and graded again."""
    task = record.rollout.input
    assert isinstance(task, dict)
    said: dict[str, list[str]] = {}
    for call in sorted(record.calls, key=lambda call: (call.sequence, call.choice)):
        node = "link" if call.tags.get("node") == "link" else "query"
        said.setdefault(node, []).append(str((call.response or {}).get("content", "")).strip())
    databases = databases_of(task)
    queries = tuple(said.get("query", ()))
    return Outcome(
        id=task["id"],
        db_id=task["db_id"],
        question=task["question"],
        gold=task["query"],
        evaluation=str((record.rollout.metadata or {}).get("evaluation", "")),
        sample=record.rollout.sample or 0,
        tables=said.get("link", [""])[0],
        queries=queries,
        errors=tuple(_error(databases[0], query) for query in queries),
        rewards=tuple(match(task["query"], query, databases).reward for query in queries),
    )


def _error(database: Path, query: str) -> str:
    try:
        run_sql(database, query)
    except SqlError as error:
        return str(error)
    return ""


def summary(found: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of an evaluation, with intervals over databases."""
    groups: dict[str, list[float]] = {}
    for one in found:
        groups.setdefault(one.id, []).append(one.last)
    return {
        "n": len(found),
        "one_shot": mean([one.first for one in found]),
        "with_correction": mean([one.last for one in found]),
        "ci": interval([one.last for one in found], found),
        "ci_correction": interval([one.last - one.first for one in found], found, shares=False),
        "first_runs": mean([float(not one.errors[0]) for one in found]),
        "last_runs": mean([float(not one.errors[-1]) for one in found]),
        "corrected": sum(one.last > one.first for one in found),
        "mixed_groups": mean([float(0 < sum(own) < len(own)) for own in groups.values()]),
        "solved_at_all": mean([float(any(own)) for own in groups.values()]),
        "errors": dict(Counter(kind_of(one.errors[0]) for one in found if one.errors[0])),
    }


def kind_of(error: str) -> str:
    """Return the kind of a database's error."""
    return next((kind for kind in KINDS if kind in error), "other")


def mean(values: Sequence[float]) -> float:
    """Return the mean of some numbers, at least one."""
    return sum(values) / len(values)


def interval(
    values: Sequence[float], found: Sequence[Outcome], shares: bool = True
) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean over the databases that the questions are about. ``shares``: whether
    values are 0 or 1, and not differences of such.
    """
    return mean_interval(values, [one.db_id for one in found], "db_id", shares=shares).ends


def gain(after: Sequence[Outcome], before: Sequence[Outcome]) -> dict[str, Any]:
    """Return the mean difference of two evaluations of the same questions, and which were learned and lost.

    Raises ``UsageError`` if they are of other questions.
    """
    if [(one.id, one.sample) for one in after] != [(one.id, one.sample) for one in before]:
        raise UsageError(
            "the two evaluations are of other questions: evaluate both on the same set and limit"
        )
    differences = [a.last - b.last for a, b in zip(after, before, strict=True)]
    return {
        "gain": mean(differences),
        "ci_gain": interval(differences, after, shares=False),
        "learned": [one.id for one, d in zip(after, differences, strict=True) if d > 0],
        "lost": [one.id for one, d in zip(after, differences, strict=True) if d < 0],
    }


def write(found: Iterable[Outcome], file: Path) -> None:
    """Keep every question with its queries."""
    lines = (json.dumps(asdict(one), separators=(",", ":")) for one in found)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read(file: Path) -> list[Outcome]:
    """Return what :func:`write` kept."""
    return [msgspec.json.decode(line, type=Outcome) for line in file.read_bytes().splitlines()]


def main() -> None:
    """Read the runs, print."""
    parser = argparse.ArgumentParser(
        prog="python -m spider.real.outcomes", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run")
    parser.add_argument("--against", metavar="RUN")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = asyncio.run(outcomes(given.run))
    if not found:
        raise SystemExit(f"{given.run}: no rollout of an evaluation succeeded")
    if given.out:
        write(found, given.out)
    more = gain(found, asyncio.run(outcomes(given.against))) if given.against else {}
    print(json.dumps({**summary(found), **more}))


if __name__ == "__main__":
    main()
