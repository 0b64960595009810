"""What a run left behind, read from its files alone: the store's SQLite file, JSON lines, safetensors.

The formats are those of ``docs/contributing/store.md``: MessagePack under zstd, ids as int32, logprobs as
float32, prompts as an earlier call's tokens and what follows them.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PROMPT, RESPONSE, LOGPROBS, ANSWER, SAMPLING = 0, 1, 2, 4, 6
SELECTED, PARENT, SHARED, VERSIONS = 15, 24, 25, 31
"""Places in the body of a call."""
ATTRIBUTES = 6
"""Place in the body of a span."""
AIMS = "call_id", "span_id", "agent"
"""Whose a reward is; the rollout's without any of them."""
KINDS = (
    "agent-raised", "no-call", "no-reward", "bad-reward", "timeout", "unresponsive", "cancelled", "straggler",
    "model-4xx", "model-5xx", "over-length", "budget", "bad-record", "failed",
)  # fmt: skip
"""Kinds of failure (``docs/failures.md``)."""


class Unjudged(Exception):
    """A run that does something for which the referee has no rule."""


@dataclass
class Call:
    """A model call of an attempt that counts."""

    policy: str
    prompt: list[int]
    response: list[int]
    logprobs: list[float]
    versions: list[int]
    temperature: float
    text: str


@dataclass
class Rollout:
    """A rollout with the calls and the rewards of its last attempt, which ended with ``end``."""

    rollout_id: str
    mode: str
    status: str
    group: str
    task: str
    sample: int
    reason: str | None
    attempt: str
    end: str
    input: Any
    about: dict[str, Any] | None
    calls: list[Call] = field(default_factory=list)
    answered: bool = False
    given: dict[str, float | None] = field(default_factory=dict)
    """A call, a span, an agent, or for the rollout "" → the reward that counts; ``None``: it is no number."""
    failure: str = ""
    credit: float | None = None
    """What its calls are trained with."""
    reward: float | None = None
    """The one reward that means are of."""

    def settle(self, table: dict[str, Any]) -> None:
        """Set what it earned. ``table``: kind of failure → what becomes of it."""
        parts = [value for aim, value in self.given.items() if aim and value is not None]
        self.credit = self.given.get("")
        self.reward = fmean(parts) if parts and "" not in self.given else self.credit
        if self.status != "succeeded":
            end = self.end if self.status == "failed" else self.status
            named = (self.reason or "").split(":")[0].strip(), end, "failed"
            self.failure = next(kind for kind in named if kind in KINDS)
        elif not self.answered and self.mode == "train" and "evaluation" not in (self.about or {}):
            self.failure = "no-call"
        elif self.credit is None and not parts:
            self.failure = "no-reward"
        if self.failure:
            self.credit = self.reward = table.get(self.failure, {}).get("reward")


@dataclass
class Run:
    """All that is read of a run."""

    folder: Path
    run_id: str
    info: dict[str, Any]
    rollouts: list[Rollout]
    reports: dict[tuple[int, str], dict[str, Any]]
    """By step and policy."""
    evaluations: dict[str, dict[str, Any]]
    """By batch, such as ``eval/before/1``."""
    rescored: dict[str, dict[str, float]]
    """Name of a version of the rewards → rollout → reward."""

    def of(self, batch: str) -> list[Rollout]:
        """The rollouts of a batch, in the order of their tasks and samples."""
        start = f"{self.run_id}/{batch}/"
        found = [one for one in self.rollouts if one.group.startswith(start)]
        return sorted(found, key=lambda one: (int(one.group.rpartition("/")[2]), one.sample))


def blob(data: bytes | None) -> Any:
    """The value of a blob of the store."""
    if data is None:
        return None
    body = data[1:] if data[:1] == b"\0" else zstd.decompress(data[1:])
    return json.loads(body) if data[:1] == b"\x02" else msgspec.msgpack.decode(body)


def numbers(data: bytes | None, kind: str) -> list[Any]:
    return [] if data is None else np.frombuffer(data, kind).tolist()


def read_run(folder: Path) -> Run:
    """Read a run's folder."""
    with closing(sqlite3.connect(f"file:{folder / 'store.sqlite'}?mode=ro", uri=True)) as db:
        (run_id, given), *more = db.execute("SELECT run_id, info FROM runs").fetchall()
        if more:
            raise Unjudged(f"{folder}: its store holds several runs")
        info = blob(given)
        if "drop" in info["gateway"].values() or "quorum" in info["schedule"] or not info["tries"]["trusted"]:
            raise Unjudged(f"{folder}: over_length: drop, a quorum, or an agent that is not trusted")
        query = (
            "SELECT r.rollout_id, mode, r.status, group_id, task_id, sample, reason, attempt_id, a.status, "
            "input, metadata FROM rollouts r LEFT JOIN (SELECT rollout_id, attempt_id, status, "
            "max(sequence_id) FROM attempts GROUP BY 1) a ON a.rollout_id = r.rollout_id ORDER BY seq"
        )
        rollouts = {row[0]: Rollout(*row[:9], *map(blob, row[9:])) for row in db.execute(query)}
        _read_calls(db, rollouts)
        _read_rewards(db, rollouts)
        for one in rollouts.values():
            one.settle(info["failure"])
        steps = db.execute("SELECT step, policy, report FROM steps")
        reports = {(step, policy): blob(report) for step, policy, report in steps}
        rescored: dict[str, dict[str, float]] = defaultdict(dict)
        for rollout, kind, data in db.execute("SELECT name, kind, data FROM notes WHERE kind GLOB 'res*'"):
            for reward in blob(data)["rewards"]:
                rescored[kind.removeprefix("rescored ")][rollout] = reward["value"]
    evaluations = {batch: entry["evaluation"] for batch, entry in info.get("evaluations", {}).items()}
    return Run(folder, run_id, info, [*rollouts.values()], reports, evaluations, rescored)


def _read_calls(db: sqlite3.Connection, rollouts: dict[str, Rollout]) -> None:
    """The calls of last attempts, in the order in which they were made. A prompt is whole again."""
    whole: dict[str, list[int]] = {}
    query = (
        "SELECT call_id, rollout_id, attempt_id, policy, status, policy_version, data FROM calls ORDER BY seq"
    )
    for call_id, rollout, attempt, policy, status, version, data in db.execute(query):
        body, one = blob(data), rollouts[rollout]
        prompt = numbers(body[PROMPT], "<i4")
        if (parent := body[PARENT]) is not None:
            prompt = whole[parent][: body[SHARED]] + prompt
        response = numbers(body[RESPONSE], "<i4")
        whole[call_id] = prompt + response
        if attempt != one.attempt:
            continue
        one.answered |= status == "ok" or (status == "cancelled" and bool(response))
        if status != "ok" or not body[SELECTED]:
            continue
        versions = numbers(body[VERSIONS], "<i4") if len(body) > VERSIONS else []
        versions = versions or [-1 if version is None else version] * len(response)
        temperature, text = body[SAMPLING].get("temperature", 1.0), (body[ANSWER] or {}).get("content") or ""
        logprobs = numbers(body[LOGPROBS], "<f4")
        one.calls.append(Call(policy, prompt, response, logprobs, versions, temperature, text))


def _read_rewards(db: sqlite3.Connection, rollouts: dict[str, Rollout]) -> None:
    """The rewards of last attempts (``docs/contributing/store.md``): of those with the same aim, one with the
    name ``reward`` counts before others, then a returned one before those emitted, then the last.
    """
    query = (
        "SELECT rollout_id, attempt_id, returned, data FROM spans "
        "WHERE name = 'agentlightning.reward' ORDER BY rollout_id, sequence"
    )
    rows = [(rollouts[row[0]], *row[1:3], blob(row[3])[ATTRIBUTES]) for row in db.execute(query)]
    rows.sort(key=lambda row: (row[3].get("agl.reward.name", "reward") == "reward", row[2]))
    for one, attempt, _, said in rows:
        aim = next(filter(None, (said.get(f"agl.reward.{name}") for name in AIMS)), "")
        if attempt == one.attempt and (aim or said.get("agl.reward.final", True)):
            value = said.get("agl.reward.value", math.nan)
            one.given[aim] = value if math.isfinite(value) else None
