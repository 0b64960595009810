"""An index of a store's rollouts, in a SQLite database in memory: filters, search, order and pages in SQL.

The store's own file has no column for rewards and is opened to read only, so the columns that lists need are
copied. Invariant: after :meth:`RolloutIndex.refresh` every rollout of the store has one line, as of then.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from agl_dashboard.data.lines import Head, Line, LineSource
from agl_dashboard.data.query import RolloutQuery

_COLUMNS = ", ".join(f'"{name}"' for name in Line._fields)
_TABLE = f"""
CREATE TABLE lines (seq INTEGER PRIMARY KEY, stamp TEXT NOT NULL, {_COLUMNS});
CREATE UNIQUE INDEX lines_rollout ON lines (rollout);
CREATE INDEX lines_run ON lines (run);
CREATE INDEX lines_status ON lines (run, status);
CREATE INDEX lines_mode ON lines (run, mode);
CREATE INDEX lines_group ON lines (group_id);
"""
_MARKS = ", ".join("?" * (len(Line._fields) + 2))
_PUT = f"INSERT OR REPLACE INTO lines (seq, stamp, {_COLUMNS}) VALUES ({_MARKS})"


_FIRST_WAIT = 0.25
"""Seconds for which the first request waits; what was read until then is shown."""
_WAIT = 0.05


class Found(NamedTuple):
    """One page of lines."""

    lines: list[Line]
    total: int
    """Lines that pass the filters."""
    indexed: int
    of: int
    """Rollouts of the store; more than ``indexed`` while the index is being built."""


class Facet(NamedTuple):
    """A value of a column, and the number of lines that have it."""

    value: str
    n: int


class RolloutIndex:
    """The lines of one store."""

    def __init__(self, source: LineSource) -> None:
        self.source = source
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.executescript(_TABLE)
        self._lock = threading.Lock()
        """Held for one statement at a time: requests and the refresh take turns."""
        self._refreshing: asyncio.Task[None] | None = None
        self._checked = 0.0
        self._took = 0.0
        self._mark: str | None = None
        self._facets: dict[tuple[str, str], list[Facet]] = {}
        self._totals: dict[tuple[Any, ...], int] = {}
        """Filters → lines that pass them, until the next change."""
        self._indexed = 0
        self.of = 0

    async def close(self) -> None:
        """End a refresh under way, and close source and database."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self.source.close()
        with self._lock:
            self._db.close()

    # -- keeping up
    async def refresh(self) -> None:
        """Bring the lines up to date. Of a large store only a part may be there when this returns."""
        if self._refreshing is None or self._refreshing.done():
            if self._refreshing is not None and not self._refreshing.cancelled():
                self._refreshing.result()
            if time.monotonic() - self._checked < max(0.5, 2 * self._took):
                return
            self._refreshing = asyncio.ensure_future(self._refresh())
        await asyncio.wait({self._refreshing}, timeout=_WAIT if self._checked else _FIRST_WAIT)
        if self._refreshing.done() and not self._refreshing.cancelled():
            self._refreshing.result()

    async def wait(self) -> None:
        """Wait until a refresh under way has ended."""
        if self._refreshing is not None:
            await self._refreshing

    async def _refresh(self) -> None:
        mark = await self.source.mark()
        if mark is None or mark != self._mark:
            began = time.monotonic()
            await self._read_changes()
            self._took = time.monotonic() - began
        self._mark, self._checked = mark, time.monotonic()

    async def _read_changes(self) -> None:
        heads = await self.source.heads()
        self.of = len(heads)
        known = dict(await self._all("SELECT rollout, stamp FROM lines"))
        by_id = {head.rollout: head for head in heads}
        if gone := known.keys() - by_id.keys():
            await self._many("DELETE FROM lines WHERE rollout = ?", [(one,) for one in gone])
        changed = [h.rollout for h in heads if not h.final or known.get(h.rollout) != h.stamp]
        async for lines in self.source.lines(changed):
            await self._many(_PUT, [_row(by_id[line.rollout], line) for line in lines])

    @property
    def whole(self) -> bool:
        """Whether the last refresh has ended."""
        return self._refreshing is None or self._refreshing.done()

    # -- reading
    async def page(self, query: RolloutQuery) -> Found:
        """Return the lines that a query asks for."""
        where, values = query.where()
        total = await self._total(where, values)
        rows = await self._all(
            f"SELECT {_COLUMNS} FROM lines{where} ORDER BY {query.order()} LIMIT ? OFFSET ?",
            [*values, query.size, query.size * (query.page - 1)],
        )
        if not self._indexed:
            self._indexed = (await self._all("SELECT count(*) FROM lines"))[0][0]
        return Found([Line(*row) for row in rows], total, self._indexed, max(self.of, self._indexed))

    async def _total(self, where: str, values: Sequence[Any]) -> int:
        key = (where, *values)
        if key in self._totals:
            return self._totals[key]
        found = int((await self._all(f"SELECT count(*) FROM lines{where}", values))[0][0])
        if self.whole and len(self._totals) < 1_000:
            self._totals[key] = found
        return found

    async def facets(self, run: str, column: str, most: int = 40) -> list[Facet]:
        """Return the values of a column among the lines of a run, the most frequent first."""
        if column not in ("status", "mode", "batch"):
            raise ValueError(f"{column} is no column that has few values")
        if (run, column) in self._facets:
            return self._facets[run, column]
        rows = await self._all(
            f"SELECT {column}, count(*) FROM lines WHERE run = ? GROUP BY 1 ORDER BY 2 DESC LIMIT ?",
            [run, most],
        )
        found = [Facet(str(value), n) for value, n in rows]
        if self.whole:
            self._facets[run, column] = found
        return found

    async def group(self, group_id: str) -> list[Line]:
        """Return the rollouts of one group, in order of arrival."""
        found = f"SELECT {_COLUMNS} FROM lines WHERE group_id = ? ORDER BY sample, seq LIMIT 1000"
        return [Line(*row) for row in await self._all(found, [group_id])]

    async def _all(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        return await asyncio.to_thread(self._run, text, values)

    def _run(self, text: str, values: Sequence[Any]) -> list[Any]:
        with self._lock:
            return self._db.execute(text, values).fetchall()

    async def _many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        await asyncio.to_thread(self._run_many, text, rows)
        self._facets.clear()
        self._totals.clear()
        self._indexed = 0

    def _run_many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany(text, rows)
            self._db.execute("COMMIT")


def _row(head: Head, line: Line) -> tuple[Any, ...]:
    return (head.order, head.stamp, *line)
