"""The store in tables: its operations as methods, and batches of them."""

from __future__ import annotations

import inspect
import math
import secrets
from collections.abc import Sequence
from functools import cache, partial, reduce, wraps
from operator import or_
from typing import TYPE_CHECKING, Any, get_type_hints

from agentlightning.plugins.manager import store_operation
from agentlightning.store.base import OPERATIONS, Store, StoreError
from agentlightning.store.calls import StoredRecord
from agentlightning.store.codec import BatchOutcome, from_outcome, to_outcome
from agentlightning.store.sql import (
    attempts,
    expiry,
    leases,
    reading,
    resources,
    rollouts,
    runs,
    schema,
    trace,
)
from agentlightning.store.sql.core import Operation, StoreCache, Tables
from agentlightning.store.sql.database import Database, PartialWrite, Touched, Writer
from agentlightning.store.sql.waiting import Clock, ExpiryTimer, LoopWatch, Waiters

_PAGES = 4 * 4096
"""Bytes that no free place in a page of the file holds."""
_MODULES = (resources, rollouts, attempts, expiry, leases, trace, reading, runs)
"""Where the operations are."""


class SQLStore(Tables, Store):
    """All of :class:`~agentlightning.store.base.Store`, in tables of a database that this process opened."""

    def __init__(
        self, db: Database, writer: Writer, clock: Clock, cache: StoreCache, waiters: Waiters
    ) -> None:
        super().__init__(db, writer, clock, cache, waiters)
        self.timer = ExpiryTimer(partial(expiry.expire_due, self))
        self.watch = LoopWatch(clock, lambda: self.cache.next_due != math.inf)
        self.opened = clock()

    if not TYPE_CHECKING:  # so that a misspelt method is an error to mypy

        def __getattr__(self, name: str) -> Any:
            """Return an operation that a plugin adds (hook ``agl_store_operations``)."""
            if name.startswith("_"):
                raise AttributeError(name)
            return partial(_plugin_operation(name), self)

    async def expire(self, now: float | None = None) -> int:
        """End the attempts that are overdue at ``now``; return how many. The store's timer does the same."""
        return await self.write_once(
            "expire", lambda: expiry.end_overdue(self, self.clock() if now is None else now)
        )

    async def stored_records(self, rollout_ids: Sequence[str]) -> list[StoredRecord]:
        """Return the same as :meth:`records`, with calls as they are stored."""
        return await reading.stored_records(self, rollout_ids)

    async def batch(
        self, calls: Sequence[tuple[str, dict[str, Any]]], *, request_id: str | None = None
    ) -> list[Any]:
        """Do each ``(method, parameters)`` in order, as one write. Return a result each, or the exception in
        its place.

        The batch is stored as a whole or not at all; a call that fails changes nothing; a batch that is sent
        again under its request id is answered the same and not done again. Nothing waits: leave ``wait`` and
        ``timeout`` out, or give 0.
        """
        coroutines = [partial(self._run_call, name, given) for name, given in calls]
        if not any("request_id" in _declaration(name).parameters for name, _ in calls):
            request_id = None  # nothing to remember
        kinds = [_declaration(name).return_annotation for name, _ in calls]

        for savepoints in (False, True):
            try:
                return await self.write_once(
                    "batch",
                    partial(self.writer.write_batch, coroutines, savepoints),
                    request_id,
                    list[BatchOutcome],
                    to_answer=lambda results: [to_outcome(r) for r in results],
                    from_answer=lambda outcomes: [
                        from_outcome(*pair) for pair in zip(kinds, outcomes, strict=True)
                    ],
                    touched=lambda: reduce(or_, (Touched.by(given) for _, given in calls), Touched()),
                )
            except PartialWrite as error:
                failed = error
        raise StoreError(f"the write failed and nothing of it was stored: {failed}") from failed.__cause__

    async def _run_call(self, name: str, given: dict[str, Any]) -> Any:
        if _declaration(name) is _NO_OPERATION:
            raise ValueError(f"method: there is no {name!r}; one of {', '.join(sorted(OPERATIONS))}")
        if given.get("wait") or (name == "wait_for_rollouts" and given.get("timeout") != 0):
            raise ValueError(f"nothing waits in a batch: send {name} on its own, or without waiting")
        return await getattr(self, name)(**given)

    async def check_writable(self) -> None:
        """Write something that takes room on the disk, and take it back. Raise :class:`StoreError` where the
        store cannot be written.
        """
        await self.write_once("check", self._write_and_delete)

    def _write_and_delete(self) -> None:
        request_id = f"check-{secrets.token_hex(8)}"
        row = {"request_id": request_id, "method": "check", "time": self.clock(), "answer": bytes(_PAGES)}
        self.db.insert(schema.requests, row)
        self.db.delete(schema.requests, request_id=request_id)

    def announce(self, url: str) -> None:
        """Tell other processes that this one serves the store at ``url``, where they may need to know."""

    @property
    def in_use(self) -> bool:
        """Whether a process may be writing the store."""
        return True


_NO_OPERATION = inspect.Signature()


def _plugin_operation(name: str) -> Operation[Any]:
    found: Operation[Any] = store_operation(name)
    return found


def _declaration(name: str) -> inspect.Signature:
    """Return parameters and types of an operation of the interface or of a plugin, else ``_NO_OPERATION``."""
    try:
        declared = getattr(Store, name) if name in OPERATIONS else _plugin_operation(name)
    except (AttributeError, ImportError):
        return _NO_OPERATION
    return _signature(declared)


@cache
def _signature(declared: Any) -> inspect.Signature:
    return inspect.signature(declared).replace(return_annotation=get_type_hints(declared)["return"])


def _method(operation: Operation[Any]) -> Any:
    """Return an operation as the method that the interface declares."""
    declared = getattr(Store, operation.__name__)
    signature = _signature(declared)

    @wraps(declared)
    async def method(self: SQLStore, *args: Any, **given: Any) -> Any:
        bound = signature.bind(self, *args, **given)
        bound.apply_defaults()
        del bound.arguments["self"]
        return await operation(self, **bound.arguments)

    return method


for _module in _MODULES:
    for _name, _operation in vars(_module).items():
        if _name in OPERATIONS:
            setattr(SQLStore, _name, _method(_operation))
