"""Batches: several store methods done in order as one write, under one request id.

Invariants: all of a batch is on file or nothing; each call has its own result, and one that fails changes
nothing; sent again under the same request id, the batch is answered the same and not done again.
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
    """Many calls for the price of one commit."""

    async def batch(
        self, calls: Sequence[tuple[str, dict[str, Any]]], *, request_id: str | None = None
    ) -> list[Any]:
        """Do ``(method, parameters)`` in order; a result each, or the error in its place.

        Nothing waits: ``wait`` and ``timeout`` are to be left out or 0.
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
