"""What all operations of a store in tables share: reads, writes that are done once, remembered answers,
counted refusals, and what is cached of live attempts.

An operation of :class:`~agentlightning.store.base.Store` is a function over :class:`Tables`, of the same name
and parameters, in one of the modules beside this one. It is ``async``, or made so by :func:`read` or
:func:`write`. :mod:`.store` makes methods of them.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, get_type_hints

from sqlalchemy import bindparam, delete, func, select, update

from agentlightning.store import codec
from agentlightning.store.base import REMEMBERED, AttemptEnded, Conflict
from agentlightning.store.calls import CallIndex
from agentlightning.store.sql import schema
from agentlightning.store.sql.database import Database, Touched, Writer, given, nothing
from agentlightning.store.sql.waiting import Clock, LoopWatch, Timer, Waiters

T = TypeVar("T")
Operation = Callable[..., Coroutine[Any, Any, T]]

_PRUNE_EVERY = 1024
"""Remembered requests between two prunings."""
_MAX_ATTEMPTS = 10_000
"""Cached attempts."""
_LEAST_INDEX_BYTES = 128 << 20
_SHARE = 32
"""The call indexes of all attempts take at most this part of the machine's memory."""

_r, _c = schema.requests.c, schema.counts.c
_FIND = select(_r.method, _r.answer).where(given(_r.request_id))
_NEWEST = select(func.max(_r.seq))
_PRUNE = delete(schema.requests).where(_r.seq < bindparam("before"))
_COUNT = (
    update(schema.counts)
    .where(given(_c.rollout_id, _c.attempt_id, _c.kind, _c.reason))
    .values(n=_c.n + bindparam("more"))
)


class StoreRefusal(AttemptEnded):
    """An :class:`AttemptEnded` with the reason under which the store counts it."""

    def __init__(self, message: str, reason: str, rollout_id: str, attempt_id: str, n: int) -> None:
        super().__init__(message)
        self.counted = (reason, rollout_id, attempt_id, n)


class Tables:
    """The tables of a store, and what its operations share."""

    timer: Timer
    watch: LoopWatch
    opened: float
    """When limits of attempts began to count, by ``clock``."""

    def __init__(
        self, db: Database, writer: Writer, clock: Clock, cache: StoreCache, waiters: Waiters
    ) -> None:
        self.db = db
        self.cache = cache
        self.writer = writer
        self.waiters = waiters
        self.clock = clock
        self._remembered_count = 0
        self._age_marks: deque[tuple[float, int]] = deque()
        """(Time, newest request at that time): the age of requests, whatever clock wrote the file before."""

    async def write_once(
        self,
        name: str,
        work: Callable[[], T],
        request_id: str | None = None,
        kind: Any = Any,
        *,
        to_answer: Callable[[T], Any] | None = None,
        from_answer: Callable[[Any], T] | None = None,
        should_remember: Callable[[T], bool] = lambda _: True,
        touched: Callable[[], Touched] = nothing,
    ) -> T:
        """Do ``work`` once per request id and commit it. Raise ``StoreError`` if the store is open read-only.

        The store remembers the answer, of type ``kind``, for requests that are sent again. ``to_answer``
        leaves out of it what the caller has already, and ``from_answer`` restores that. An answer that
        ``should_remember`` rejects is not remembered. A refusal is counted although its write is rolled back:
        once, however often the refused request is sent again.
        """

        def once() -> T:
            if request_id is None:
                return work()
            found = self.find_answer(name, request_id)
            if found is not None:
                answer = codec.unpack(found, kind)
                return from_answer(answer) if from_answer else answer
            result = work()
            if should_remember(result):
                self._remember(name, request_id, to_answer(result) if to_answer else result)
            return result

        self.db.require_writable()
        try:
            return await self.writer.write(once, touched)
        except StoreRefusal as refused:
            count = partial(self.add_count, "refused", *refused.counted)
            await self.write_once("refused", count, request_id and f"{request_id}:refused")
            raise AttemptEnded(str(refused)) from None

    def find_answer(self, name: str, request_id: str | None) -> bytes | None:
        """Return the remembered answer of a request, or ``None``."""
        found = None if request_id is None else self.db.one(_FIND, request_id=request_id)
        if found is not None and found[0] != name:
            raise Conflict(f"request id {request_id} was already used for {found[0]}, not for {name}")
        return None if found is None else bytes(found[1])

    def _remember(self, name: str, request_id: str, answer: Any) -> None:
        now = self.clock()
        if self._remembered_count % _PRUNE_EVERY == 0:
            self.prune_answers(now)
        self._remembered_count += 1
        blob = codec.pack(answer, small=4096)  # short-lived: compressing seldom pays
        row = {"request_id": request_id, "method": name, "time": now, "answer": blob}
        self.db.insert(schema.requests, row)

    def prune_answers(self, now: float) -> None:
        """Forget the answers of requests that are older than the store promises to remember."""
        newest, old = self.db.value(_NEWEST), None
        while self._age_marks and self._age_marks[0][0] <= now - REMEMBERED:
            _, old = self._age_marks.popleft()
        if old is not None:  # the newest stays: row numbers must not start again
            self.db.execute(_PRUNE, before=old)
        if newest is not None:
            self._age_marks.append((now, newest))

    def add_count(
        self, kind: str, reason: str, rollout_id: str | None, attempt_id: str | None, n: int
    ) -> None:
        """Add ``n`` to the count of ``kind`` for ``reason``."""
        key = {"rollout_id": rollout_id or "", "attempt_id": attempt_id or "", "kind": kind, "reason": reason}
        if not self.db.execute(_COUNT, **key, more=n):
            self.db.insert(schema.counts, {**key, "n": n})


def read(work: Callable[..., T]) -> Operation[T]:
    """Make an operation of a function that queries the tables."""

    @wraps(work)
    async def operation(store: Tables, *args: Any, **given: Any) -> T:
        return await store.writer.read(lambda: work(store, *args, **given))

    return operation


def write(work: Callable[..., T]) -> Operation[T]:
    """Make an operation of a function that changes the tables. The operation has one parameter more,
    ``request_id``.
    """

    kind = cache(lambda: get_type_hints(work)["return"])

    @wraps(work)
    async def operation(store: Tables, *, request_id: str | None = None, **given: Any) -> T:
        do: Callable[[], T] = partial(work, store, **given)
        touched = partial(Touched.by, given)
        return await store.write_once(work.__name__, do, request_id, kind(), touched=touched)

    of_work, asked = signature(work), Parameter("request_id", Parameter.KEYWORD_ONLY, default=None)
    parameters = sorted([*of_work.parameters.values(), asked], key=lambda one: one.kind)
    operation.__signature__ = of_work.replace(parameters=parameters)  # type: ignore[attr-defined]
    operation.__annotations__ = {**work.__annotations__, "request_id": "str | None"}
    return operation


def everywhere(operation: Operation[T]) -> Operation[T]:
    """Make a plugin's operation (hook ``agl_store_operations``) of this one: it may be asked of any store.
    One in tables runs it here; any other has the operation of this name.
    """
    parameters = signature(operation)

    @wraps(operation)
    async def ask(store: Any, *args: Any, **given: Any) -> T:
        if not isinstance(store, Tables):
            found: T = await getattr(store, operation.__name__)(*args, **given)
            return found
        bound = parameters.bind(store, *args, **given)
        bound.apply_defaults()
        return await operation(**bound.arguments)

    return ask


# ----------------------------------------------------------------------------------------------------- cached
def _max_index_bytes() -> int:
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        memory = 0
    return max(_LEAST_INDEX_BYTES, memory // _SHARE)


@dataclass(slots=True)
class CachedAttempt:
    """The latest attempt of a rollout, which may write."""

    attempt_id: str
    sequence_id: int
    fence: int
    arrivals: int
    """Number of its spans and calls."""
    running: bool
    """Whether attempt and rollout have the status ``running``."""


class StoreCache:
    """Live attempts by rollout id, their call indexes, and when the next attempt may be overdue.

    Invariant: it holds nothing that is not in the tables. Any other change of an attempt drops its entry,
    and a rollback drops all entries: :meth:`clear` costs only the next queries.
    """

    def __init__(self) -> None:
        self.attempts: dict[str, CachedAttempt] = {}
        self.max_index_bytes = _max_index_bytes()
        """A dropped index is made again from the table."""
        self._indexes: dict[str, tuple[CallIndex, int]] = {}
        """Attempt id → index, and its bytes when it was last used; the least recently used first."""
        self._index_bytes = 0
        self.next_due: float | None = None
        """No attempt is overdue before this time; ``inf``: none ever will be; ``None``: unknown."""

    def put(self, rollout_id: str, live: CachedAttempt) -> CachedAttempt:
        """Cache an attempt."""
        if len(self.attempts) >= _MAX_ATTEMPTS:
            self.attempts.clear()
        self.attempts[rollout_id] = live
        return live

    def call_index(self, attempt_id: str, make: Callable[[], CallIndex]) -> CallIndex:
        """Return the index of an attempt's calls; ``make`` it if it is not cached. Drop others beyond the
        limit, the last one used first: attempts take turns, so it is the one that is needed last.
        """
        index = self.drop_call_index(attempt_id) or make()
        size = index.size
        while self._indexes and self._index_bytes + size > self.max_index_bytes:
            self._index_bytes -= self._indexes.popitem()[1][1]
        self._indexes[attempt_id] = index, size
        self._index_bytes += size
        return index

    def drop_call_index(self, attempt_id: str) -> CallIndex | None:
        """Drop and return the index of an attempt's calls, if it is cached."""
        index, size = self._indexes.pop(attempt_id, (None, 0))
        self._index_bytes -= size
        return index

    def clear(self) -> None:
        """Drop everything."""
        self.attempts.clear()
        self._indexes.clear()
        self._index_bytes = 0
        self.next_due = None
