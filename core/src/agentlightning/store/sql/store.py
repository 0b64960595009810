"""The store in tables: all of its parts, and batches of calls."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial, reduce
from operator import or_
from typing import Any

from agentlightning.store.base import CHANGES, OPERATIONS, Store, StoreError
from agentlightning.store.codec import BatchOutcome, from_outcome, to_outcome
from agentlightning.store.sql import schema
from agentlightning.store.sql.run_data.retention import RetentionStore
from agentlightning.store.sql.run_data.rewards import RewardVersionStore
from agentlightning.store.sql.run_data.runs import RunStore
from agentlightning.store.sql.run_data.statistics import StatisticsStore
from agentlightning.store.sql.trace.reading import TraceReader
from agentlightning.store.sql.trace.records import RecordReader
from agentlightning.store.sql.writer import PartialWrite, Touched

_PAGES = 4 * 4096
"""Bytes that no free place in a page of the file holds."""


class SQLStore(
    TraceReader,
    RecordReader,
    RunStore,
    RewardVersionStore,
    StatisticsStore,
    RetentionStore,
    Store,
):
    """All of :class:`~agentlightning.store.base.Store`, in tables of a database that this process opened."""

    async def batch(
        self, calls: Sequence[tuple[str, dict[str, Any]]], *, request_id: str | None = None
    ) -> list[Any]:
        """Do each ``(method, parameters)`` in order, as one write. Return a result each, or the exception in
        its place.

        The batch is stored as a whole or not at all; a call that fails changes nothing; a batch that is sent
        again under its request id is answered the same and not done again. Nothing waits: leave ``wait`` and
        ``timeout`` out, or give 0.
        """
        coroutines = [partial(self._run_call, method, given) for method, given in calls]
        names = [method for method, _ in calls]
        if not CHANGES.intersection(names):
            request_id = None  # nothing to remember

        for savepoints in (False, True):
            try:
                return await self._write(
                    "batch",
                    partial(self.writer.write_batch, coroutines, savepoints),
                    request_id,
                    list[BatchOutcome],
                    to_answer=lambda results: [to_outcome(r) for r in results],
                    from_answer=lambda outcomes: [
                        from_outcome(*pair) for pair in zip(names, outcomes, strict=True)
                    ],
                    touched=lambda: reduce(or_, (Touched.by(given) for _, given in calls), Touched()),
                )
            except PartialWrite as error:
                failed = error
        raise StoreError(f"the write failed and nothing of it was stored: {failed}") from failed.__cause__

    async def _run_call(self, method: str, given: dict[str, Any]) -> Any:
        if method not in OPERATIONS:
            raise ValueError(f"method: there is no {method!r}; one of {', '.join(sorted(OPERATIONS))}")
        if given.get("wait") or (method == "wait_for_rollouts" and given.get("timeout") != 0):
            raise ValueError(f"nothing waits in a batch: send {method} on its own, or without waiting")
        return await getattr(self, method)(**given)

    async def check_writable(self) -> None:
        """Write something that takes room on the disk, and take it back. Raise :class:`StoreError` where the
        store cannot be written.
        """
        await self._write("check", self._write_and_delete)

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
