"""Batches: several methods of the store done in order as one write, under one request id.

Invariants: a batch is on file as a whole or not at all; each call has a result of its own, and a call that
fails changes nothing; a batch sent again under its request id is answered the same and not done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from agentlightning.store.base import StoreError
from agentlightning.store.routes import BY_NAME, BatchOutcome, from_outcome, to_outcome
from agentlightning.store.sqlite.core import StoreCore
from agentlightning.store.sqlite.file.writer import PartialWrite


class BatchWriter(StoreCore):
    """Several calls in one commit."""

    async def batch(
        self, calls: Sequence[tuple[str, dict[str, Any]]], *, request_id: str | None = None
    ) -> list[Any]:
        """Do each ``(method, parameters)`` in order. Returns a result each, or the exception in its place.

        Nothing waits: leave ``wait`` and ``timeout`` out, or give 0.
        """
        coroutines = [partial(self._run_call, method, given) for method, given in calls]
        names = [method for method, _ in calls]
        if not any(name in BY_NAME and BY_NAME[name].mutates for name in names):
            request_id = None  # nothing to remember

        async def run(savepoints: bool) -> list[Any]:
            return await self._write(
                "batch",
                lambda: self.writer.write_batch(coroutines, savepoints),
                request_id,
                list[BatchOutcome],
                to_answer=lambda results: [to_outcome(r) for r in results],
                from_answer=lambda outcomes: [
                    from_outcome(*pair) for pair in zip(names, outcomes, strict=True)
                ],
            )

        try:
            return await run(savepoints=False)
        except PartialWrite:
            pass
        try:
            return await run(savepoints=True)
        except PartialWrite as error:
            raise StoreError(f"the write failed and nothing of it was stored: {error}") from error.__cause__

    async def _run_call(self, method: str, given: dict[str, Any]) -> Any:
        if method not in BY_NAME:
            raise ValueError(f"method: there is no {method!r}; one of {', '.join(sorted(BY_NAME))}")
        if given.get("wait") or (method == "wait_for_rollouts" and given.get("timeout") != 0):
            raise ValueError(f"nothing waits in a batch: send {method} on its own, or without waiting")
        return await getattr(self, method)(**given)
