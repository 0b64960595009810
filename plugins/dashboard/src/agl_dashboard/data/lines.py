"""One line for each rollout: what lists show, filter and sort by, read in bulk from a store.

From a file, columns and reward spans are read, and whole records only where these do not decide the rollout's
reward; from any other store, whole records.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sqlalchemy import and_, func, select

from agentlightning import semconv
from agentlightning.credit.rewards import resolve
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.store import SQLiteStore, Store
from agentlightning.store.sql import schema
from agentlightning.store.sql.database import InJson
from agentlightning.store.sql.rollouts import ROLLOUT_COLUMNS, rollout_from_row
from agentlightning.store.sql.trace import SPAN_COLUMNS, span_from_row
from agentlightning.store.sqlite.store import SQLiteDatabase
from agentlightning.types import Attempt, AttemptStatus, Call, Record, Reward, Rollout, RolloutStatus
from agentlightning.types.failure import FailureTable, read_failure_table
from agentlightning.types.record import reward_of
from agl_audit.locations import ALL

TEXT = 400
"""Characters of a task that can be searched."""
_r, _a, _s, _c = schema.rollouts, schema.attempts, schema.spans, schema.calls


class Head(NamedTuple):
    """A rollout as far as it shows whether its line is out of date."""

    rollout: str
    order: int
    """Place in the order of arrival."""
    stamp: str
    """Differs after a change of status or attempt, and of what the metadata hold: a reward that was given
    afterwards is noted there."""
    final: bool


class Line(NamedTuple):
    """One rollout. Times in seconds; ``None``: there is none yet."""

    rollout: str
    run: str
    task: str
    group_id: str
    batch: str
    """``train/3``: the fourth step; ``eval/before``: an evaluation."""
    sample: int
    mode: str
    status: str
    attempts: int
    start: float
    seconds: float | None
    reward: float | None
    """As :func:`agentlightning.credit.rollout_reward.rollout_reward` has it; missing is not zero."""
    calls: int
    tokens: int
    """Tokens of its latest attempt's answers."""
    reason: str
    asked: str
    """The beginning of its task as text."""
    search: str
    """What a search looks through, in lower case."""


class LineSource(Protocol):
    """Reads lines from one store."""

    async def mark(self) -> str | None:
        """Return what differs after any change of the store; ``None``: it cannot be told."""

    async def heads(self) -> list[Head]:
        """Return the head of each rollout, in order of arrival."""

    def lines(self, rollout_ids: Sequence[str]) -> AsyncIterator[list[Line]]:
        """Yield the lines of rollouts, some hundred at a time."""

    async def close(self) -> None:
        """Close what was opened."""


def line_source(store: Store) -> LineSource:
    """Return the fastest source for a store."""
    if isinstance(store, SQLiteStore) and store.db.path is not None:
        return FileLines(store.db.path)
    return StoreLines(store)


def as_line(record: Record, calls: int, tokens: int, reward: float | None) -> Line:
    """Return the line of a rollout, from a record whose calls may be missing."""
    rollout = record.rollout
    run, group = rollout.run_id or "", rollout.group_id or ""
    asked = words_of(rollout.input)
    reason = rollout.reason or (record.attempt.reason if record.attempt else None) or ""
    words = (rollout.rollout_id, rollout.task_id or "", group, reason[:TEXT], _json(rollout.input)[:TEXT])
    return Line(
        rollout=rollout.rollout_id,
        run=run,
        task=rollout.task_id or "",
        group_id=group,
        batch=group.removeprefix(f"{run}/").rpartition("/")[0],
        sample=rollout.sample,
        mode=rollout.mode,
        status=str(rollout.status),
        attempts=rollout.attempts,
        start=rollout.start_time,
        seconds=rollout.end_time - rollout.start_time if rollout.end_time else None,
        reward=reward,
        calls=calls,
        tokens=tokens,
        reason=reason[:TEXT],
        asked=asked[:TEXT],
        search="\n".join(words).lower(),
    )


_ASKING = ("question", "prompt", "input", "text", "query", "task", "q")
"""Keys under which a task of several values is likely to have its words."""


def words_of(task: Any) -> str:
    """Return a task as a person would name it: its question if it has one, else all of it."""
    if isinstance(task, str):
        return task
    if isinstance(task, dict):
        for key in _ASKING:
            if isinstance(task.get(key), str) and task[key].strip():
                return str(task[key])
    return _json(task)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# ------------------------------------------------------------------------------------------------ from a file
_SIZE = func.coalesce(func.length(_r.c.metadata), 0)
_HEADS = select(_r.c.rollout_id, _r.c.seq, _r.c.status, _r.c.attempts, _r.c.end_time, _SIZE).order_by(
    _r.c.seq
)
_ROLLOUTS = select(*ROLLOUT_COLUMNS).where(InJson(_r.c.rollout_id)).order_by(_r.c.seq)
_LATEST = _r.join(_a, and_(_a.c.rollout_id == _r.c.rollout_id, _a.c.sequence_id == _r.c.attempts))
_OF_LATEST_SPAN = and_(_s.c.rollout_id == _a.c.rollout_id, _s.c.attempt_id == _a.c.attempt_id)
_REWARDS = (
    select(*SPAN_COLUMNS)
    .select_from(_LATEST.join(_s, _OF_LATEST_SPAN))
    .where(InJson(_r.c.rollout_id), _s.c.name == semconv.REWARD_SPAN)
    .order_by(_s.c.sequence)
)
_OF_LATEST_CALL = and_(_c.c.rollout_id == _a.c.rollout_id, _c.c.attempt_id == _a.c.attempt_id)
_CALLS = (
    select(
        _c.c.rollout_id,
        func.count(),
        func.coalesce(func.sum(_c.c.completion_tokens), 0),
        func.sum(_c.c.status != "ok"),
    )
    .select_from(_LATEST.join(_c, _OF_LATEST_CALL))
    .where(InJson(_r.c.rollout_id))
    .group_by(_c.c.rollout_id)
)
_ATTEMPTS = (
    select(_a.c.rollout_id, _a.c.attempt_id, _a.c.status, _a.c.reason)
    .select_from(_LATEST)
    .where(InJson(_r.c.rollout_id))
)
_FINAL = ("succeeded", "failed", "cancelled")


class FailureTables:
    """The failure tables of a store's runs, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str | None, FailureTable | None] = {None: None}

    async def of(self, run_ids: Iterable[str | None]) -> Mapping[str | None, FailureTable | None]:
        """Return run → its failure table; ``None`` for a run without a record."""
        if {*run_ids} - self._known.keys():
            for info in await self._store.query_runs(limit=ALL):
                self._known[info["run_id"]] = read_failure_table(info.get("failure"))
            self._known |= {run: None for run in run_ids if run not in self._known}
        return self._known


class FileLines:
    """Lines from a store's file, read in a thread through a connection of its own."""

    CHUNK = 500

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store: SQLiteStore | None = None
        self._tables: FailureTables | None = None

    @property
    def store(self) -> SQLiteStore:
        if self._store is None:
            self._store = SQLiteStore(self.path, read_only=True)
        return self._store

    @property
    def db(self) -> SQLiteDatabase:
        return self.store.db

    async def mark(self) -> str | None:
        return await asyncio.to_thread(self._mark)

    def _mark(self) -> str:
        return str(self.db.connection.execute("PRAGMA data_version").fetchone()[0])

    async def heads(self) -> list[Head]:
        return await asyncio.to_thread(self._heads)

    def _heads(self) -> list[Head]:
        rows = self.db.all(_HEADS)
        return [
            Head(i, seq, f"{status} {n} {end} {size}", status in _FINAL)
            for i, seq, status, n, end, size in rows
        ]

    async def lines(self, rollout_ids: Sequence[str]) -> AsyncIterator[list[Line]]:
        self._tables = self._tables or FailureTables(self.store)
        for start in range(0, len(rollout_ids), self.CHUNK):
            found = await asyncio.to_thread(self._columns, rollout_ids[start : start + self.CHUNK])
            unsure = [one.record.rollout.rollout_id for one in found if not one.decides]
            whole = {one.rollout.rollout_id: one for one in await self.store.records(unsure)}
            tables = await self._tables.of({one.record.rollout.run_id for one in found})
            yield [one.line(whole, tables) for one in found]

    def _columns(self, rollout_ids: Sequence[str]) -> list[_Columns]:
        ids = json.dumps(list(rollout_ids))
        rewards: defaultdict[str, list[Reward]] = defaultdict(list)
        for row in self.db.all(_REWARDS, ids=ids):
            span = span_from_row(row)
            if (reward := reward_of(span)) is not None:
                rewards[span.rollout_id].append(reward)
        calls = {i: numbers for i, *numbers in self.db.all(_CALLS, ids=ids)}
        attempts = {
            i: Attempt(attempt_id=attempt, rollout_id=i, status=AttemptStatus(status), reason=reason)
            for i, attempt, status, reason in self.db.all(_ATTEMPTS, ids=ids)
        }
        found = []
        for row in self.db.all(_ROLLOUTS, ids=ids):
            rollout = rollout_from_row(row)
            i = rollout.rollout_id
            n, tokens, not_ok = calls.get(i, (0, 0, 0))
            answered = [Call(call_id="", rollout_id=i, attempt_id="")] if n > not_ok else []
            record = Record(rollout=rollout, calls=answered, attempt=attempts.get(i), rewards=rewards[i])
            found.append(_Columns(record, n, tokens, not_ok))
        return found

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()
            self._store = self._tables = None


class _Columns(NamedTuple):
    """What columns and reward spans tell of a rollout."""

    record: Record
    """Without its calls, but for a stand-in of those that were answered."""
    calls: int
    tokens: int
    not_ok: int
    """Calls without a whole answer."""

    @property
    def decides(self) -> bool:
        """Whether this decides the rollout's reward: it succeeded by answered calls alone, with a reward of
        the whole rollout; or it has not succeeded.
        """
        if self.record.rollout.status != RolloutStatus.SUCCEEDED:
            return True
        return self.calls > 0 and not self.not_ok and resolve(self.record).final is not None

    def line(self, whole: Mapping[str, Record], tables: Mapping[str | None, FailureTable | None]) -> Line:
        rollout = self.record.rollout
        record = self.record if self.decides else whole.get(rollout.rollout_id, self.record)
        reward = rollout_reward(record, tables[rollout.run_id]).value
        return as_line(self.record, self.calls, self.tokens, reward)


# -------------------------------------------------------------------------------------------- from any store
LATE = 600.0
"""Seconds after a rollout's end in which its group may yet be graded: so long it is asked for again."""


class StoreLines:
    """Lines from a store behind a URL, through its queries."""

    CHUNK = 64

    def __init__(self, store: Store) -> None:
        self.store = store
        self._tables = FailureTables(store)
        self._heads: dict[str, Head] = {}
        self._ended: dict[str, float] = {}
        """Rollout → when it ended."""

    async def mark(self) -> str | None:
        return None

    async def heads(self) -> list[Head]:
        now = time.time()
        open_ids = [
            i for i, head in self._heads.items() if not head.final or self._ended.get(i, 0.0) > now - LATE
        ]
        for start in range(0, len(open_ids), 500):
            some = open_ids[start : start + 500]
            for rollout in await self.store.query_rollouts(rollout_ids=some, limit=500):
                self._note(rollout, self._heads[rollout.rollout_id].order)
        after = next(reversed(self._heads), None)
        while found := await self.store.query_rollouts(limit=500, after=after):
            for rollout in found:
                self._note(rollout, len(self._heads))
            after = found[-1].rollout_id
        return list(self._heads.values())

    def _note(self, rollout: Rollout, order: int) -> None:
        stamp = f"{rollout.status} {rollout.attempts} {rollout.end_time} {len(rollout.metadata)}"
        self._heads[rollout.rollout_id] = Head(rollout.rollout_id, order, stamp, rollout.status.final)
        if rollout.end_time is not None:
            self._ended[rollout.rollout_id] = rollout.end_time

    async def lines(self, rollout_ids: Sequence[str]) -> AsyncIterator[list[Line]]:
        for start in range(0, len(rollout_ids), self.CHUNK):
            records = await self.store.records(rollout_ids[start : start + self.CHUNK])
            tables = await self._tables.of({record.rollout.run_id for record in records})
            yield [
                as_line(
                    record,
                    len(record.calls),
                    sum(len(call.response_ids or ()) for call in record.calls),
                    rollout_reward(record, tables[record.rollout.run_id]).value,
                )
                for record in records
            ]

    async def close(self) -> None:
        """The store belongs to its owner."""
