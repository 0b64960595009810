"""What a run left behind, read from its files alone: the store's SQLite file, JSON lines, safetensors.

The formats are those of ``docs/store.md``: MessagePack under zstd, token ids as int32, logprobs as float32,
prompts as an earlier call's tokens and what follows them.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
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


class Unjudged(Exception):
    """A run that does something for which the referee has no rule."""


@dataclass
class Call:
    """A model call of an attempt that counts."""

    call_id: str
    policy: str
    prompt: list[int]
    response: list[int]
    logprobs: list[float]
    versions: list[int]
    temperature: float
    text: str


@dataclass
class Rollout:
    """A finished rollout with the calls and the reward of its last attempt."""

    rollout_id: str
    mode: str
    status: str
    group: str
    task: str
    sample: int
    reward: float | None
    calls: list[Call] = field(default_factory=list)


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
    mark, body = data[:1], data[1:]
    if mark == b"\x02":
        return json.loads(zstd.decompress(body))
    return msgspec.msgpack.decode(zstd.decompress(body) if mark == b"\x01" else body)


def numbers(data: bytes | None, kind: str) -> list[Any]:
    return [] if data is None else np.frombuffer(data, kind).tolist()


def read_run(folder: Path) -> Run:
    """Read a run's folder."""
    with closing(sqlite3.connect(f"file:{folder / 'store.sqlite'}?mode=ro", uri=True)) as db:
        (run_id, info), *more = db.execute("SELECT run_id, info FROM runs").fetchall()
        if more:
            raise Unjudged(f"{folder}: its store holds several runs")
        last = dict(db.execute("SELECT rollout_id, max(sequence_id) FROM attempts GROUP BY 1"))
        query = "SELECT rollout_id, attempt_id, sequence_id FROM attempts"
        counts = {(r, a) for r, a, number in db.execute(query) if last[r] == number}
        calls, rewards = _calls(db, counts), _rewards(db, counts)
        query = "SELECT rollout_id, mode, status, group_id, task_id, sample FROM rollouts ORDER BY seq"
        rollouts = [
            Rollout(*row, reward=rewards.get(row[0]), calls=calls.get(row[0], []))
            for row in db.execute(query)
        ]
        reports = {
            (step, policy): blob(report)
            for step, policy, report in db.execute("SELECT step, policy, report FROM steps")
        }
        rescored: dict[str, dict[str, float]] = defaultdict(dict)
        for rollout, version, data in db.execute("SELECT rollout_id, version, data FROM rescored"):
            for reward in blob(data)["rewards"]:
                rescored[version][rollout] = reward["value"]
    found = blob(info)
    evaluations = {batch: entry["evaluation"] for batch, entry in found.get("evaluations", {}).items()}
    return Run(folder, run_id, found, rollouts, reports, evaluations, rescored)


def _calls(db: sqlite3.Connection, counts: set[tuple[str, str]]) -> dict[str, list[Call]]:
    """Rollout → its calls in the order in which they were made. A prompt is whole again."""
    whole: dict[str, tuple[list[int], list[int]]] = {}
    found: dict[str, list[Call]] = defaultdict(list)
    query = (
        "SELECT call_id, rollout_id, attempt_id, policy, status, policy_version, data FROM calls ORDER BY seq"
    )
    for call_id, rollout, attempt, policy, status, version, data in db.execute(query):
        body = blob(data)
        prompt = numbers(body[PROMPT], "<i4")
        if (parent := body[PARENT]) is not None:
            before = whole[parent]
            prompt = [*before[0], *before[1]][: body[SHARED]] + prompt
        response = numbers(body[RESPONSE], "<i4")
        whole[call_id] = prompt, response
        if status != "ok" or (rollout, attempt) not in counts or not body[SELECTED]:
            continue
        versions = numbers(body[VERSIONS], "<i4") if len(body) > VERSIONS else []
        versions = versions or [-1 if version is None else version] * len(response)
        temperature, text = body[SAMPLING].get("temperature", 1.0), (body[ANSWER] or {}).get("content") or ""
        logprobs = numbers(body[LOGPROBS], "<f4")
        call = Call(call_id, policy, prompt, response, logprobs, versions, temperature, text)
        found[rollout].append(call)
    return found


def _rewards(db: sqlite3.Connection, counts: set[tuple[str, str]]) -> dict[str, float]:
    """Rollout → the reward of its last attempt as a whole: a returned one counts before an emitted one, else
    the one that was given last.
    """
    found: dict[str, tuple[bool, float]] = {}
    query = (
        "SELECT rollout_id, attempt_id, returned, data FROM spans "
        "WHERE name = 'agentlightning.reward' ORDER BY rollout_id, sequence"
    )
    for rollout, attempt, returned, data in db.execute(query):
        said = blob(data)[ATTRIBUTES]
        aimed = any(said.get(f"agl.reward.{what}") for what in ("call_id", "span_id", "agent"))
        if (rollout, attempt) not in counts or aimed or said.get("agl.reward.name", "reward") != "reward":
            continue
        if rollout not in found or returned or not found[rollout][0]:
            found[rollout] = bool(returned), float(said["agl.reward.value"])
    return {rollout: value for rollout, (_, value) in found.items()}
