"""The base of a store in tables: reads and writes of its methods, remembered answers, counted refusals."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from sqlalchemy import bindparam, delete, func, select, update

from agentlightning.store import codec
from agentlightning.store.base import REMEMBERED, AttemptEnded, Conflict, result_type
from agentlightning.store.sql import schema
from agentlightning.store.sql.cache import StoreCache
from agentlightning.store.sql.clock import Clock
from agentlightning.store.sql.database import Database
from agentlightning.store.sql.statements import given
from agentlightning.store.sql.waiters import Waiters
from agentlightning.store.sql.writer import Touched, Writer, nothing

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="StoreCore")

_PRUNE_EVERY = 1024
"""Remembered requests between two prunings."""

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


def read(work: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a coroutine of a method that queries the tables."""

    @wraps(work)
    async def method(self: S, /, *args: P.args, **given: P.kwargs) -> T:
        return await self.writer.read(lambda: work(self, *args, **given))

    return method


def write(work: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a coroutine of a method that changes the tables: :meth:`StoreCore._write` runs it.

    The method has a parameter ``request_id``, which it leaves to ``_write``.
    """
    kind, parameters = result_type(work.__name__), inspect.signature(work)

    @wraps(work)
    async def method(self: S, /, *args: P.args, **given: P.kwargs) -> T:
        request_id = cast("str | None", given.get("request_id"))

        def touched() -> Touched:
            return Touched.by(parameters.bind(self, *args, **given).arguments)

        do = partial(work, self, *args, **given)
        return await self._write(work.__name__, do, request_id, kind, touched=touched)

    return method


class StoreCore:
    """Base of the store's parts. Public methods are coroutines; methods with ``_`` run within one."""

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

    async def _write(
        self,
        method: str,
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
            found = self._find_answer(method, request_id)
            if found is not None:
                answer = codec.unpack(found, kind)
                return from_answer(answer) if from_answer else answer
            result = work()
            if should_remember(result):
                self._remember(method, request_id, to_answer(result) if to_answer else result)
            return result

        self.db.require_writable()
        try:
            return await self.writer.write(once, touched)
        except StoreRefusal as refused:
            count = partial(self._count, "refused", *refused.counted)
            await self._write("refused", count, request_id and f"{request_id}:refused")
            raise AttemptEnded(str(refused)) from None

    def _find_answer(self, method: str, request_id: str | None) -> bytes | None:
        """Return the remembered answer of a request, or ``None``."""
        found = None if request_id is None else self.db.one(_FIND, request_id=request_id)
        if found is not None and found[0] != method:
            raise Conflict(f"request id {request_id} was already used for {found[0]}, not for {method}")
        return None if found is None else bytes(found[1])

    def _remember(self, method: str, request_id: str, answer: Any) -> None:
        now = self.clock()
        if self._remembered_count % _PRUNE_EVERY == 0:
            self._prune_answers(now)
        self._remembered_count += 1
        blob = codec.pack(answer, small=4096)  # short-lived: compressing seldom pays
        row = {"request_id": request_id, "method": method, "time": now, "answer": blob}
        self.db.insert(schema.requests, row)

    def _prune_answers(self, now: float) -> None:
        newest, old = self.db.value(_NEWEST), None
        while self._age_marks and self._age_marks[0][0] <= now - REMEMBERED:
            _, old = self._age_marks.popleft()
        if old is not None:  # the newest stays: row numbers must not start again
            self.db.execute(_PRUNE, before=old)
        if newest is not None:
            self._age_marks.append((now, newest))

    def _count(self, kind: str, reason: str, rollout_id: str | None, attempt_id: str | None, n: int) -> None:
        key = {"rollout_id": rollout_id or "", "attempt_id": attempt_id or "", "kind": kind, "reason": reason}
        if not self.db.execute(_COUNT, **key, more=n):
            self.db.insert(schema.counts, {**key, "n": n})
