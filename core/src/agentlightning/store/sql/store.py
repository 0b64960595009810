"""The store in tables: its operations as methods."""

from __future__ import annotations

import inspect
import math
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from agentlightning.plugins.manager import store_operation
from agentlightning.store.base import OPERATIONS, Store
from agentlightning.store.sql import (
    attempts,
    expiry,
    leases,
    reading,
    resources,
    rollouts,
    runs,
    trace,
)
from agentlightning.store.sql.core import Operation, StoreCache, Tables
from agentlightning.store.sql.database import Database, Writer
from agentlightning.store.sql.waiting import Clock, ExpiryTimer, LoopWatch, Waiters

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
            return partial(store_operation(name), self)

    async def expire(self, now: float | None = None) -> int:
        """End the attempts that are overdue at ``now``; return how many. The store's timer does the same."""
        return await self.write_once(
            "expire", lambda: expiry.end_overdue(self, self.clock() if now is None else now)
        )


def _method(operation: Operation[Any]) -> Any:
    """Return an operation as the method that the interface declares."""
    declared = getattr(Store, operation.__name__)
    signature = inspect.signature(declared)

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
