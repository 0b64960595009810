"""Batches: several operations of a store as one write."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, get_type_hints

from agentlightning.plugins.manager import load
from agentlightning.store.base import OPERATIONS, Store, StoreError
from agentlightning.store.sql import schema
from agentlightning.store.sql.database import PartialWrite, Touched
from agentlightning.store.sql.store import SQLStore
from agl_cluster.store.outcomes import BatchOutcome, from_outcome, to_outcome

_PAGES = 4 * 4096
"""Bytes that no free place in a page of the file holds."""


async def batch(
    store: SQLStore, calls: Sequence[tuple[str, dict[str, Any]]], *, request_id: str | None = None
) -> list[Any]:
    """Do each ``(method, parameters)`` in order, as one write. Return a result each, or the exception in its
    place.

    The batch is stored as a whole or not at all; a call that fails changes nothing; a batch that is sent
    again under its request id is answered the same and not done again. Nothing waits: leave ``wait`` and
    ``timeout`` out, or give 0.
    """
    coroutines = [partial(_run, store, name, given) for name, given in calls]
    declared = [_declared(name) for name, _ in calls]
    if not any("request_id" in inspect.signature(one).parameters for one in declared if one):
        request_id = None  # nothing to remember
    kinds = [get_type_hints(one)["return"] if one else None for one in declared]

    for savepoints in (False, True):
        try:
            return await store.write_once(
                "batch",
                partial(store.writer.write_batch, coroutines, savepoints),
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


def _declared(name: str) -> Any:
    """Return an operation of the interface or of a plugin; ``None``: there is none that a batch may ask."""
    if name in OPERATIONS:
        return getattr(Store, name)
    spec = load().store_operations.get(name)
    return spec.operation() if spec is not None and spec.path else None


async def _run(store: SQLStore, name: str, given: dict[str, Any]) -> Any:
    if _declared(name) is None:
        raise ValueError(f"method: there is no {name!r}; one of {', '.join(sorted(OPERATIONS))}")
    if given.get("wait") or (name == "wait_for_rollouts" and given.get("timeout") != 0):
        raise ValueError(f"nothing waits in a batch: send {name} on its own, or without waiting")
    return await getattr(store, name)(**given)


async def check_writable(store: SQLStore) -> None:
    """Write something that takes room on the disk, and take it back. Raise :class:`StoreError` where the
    store cannot be written.
    """

    def write_and_delete() -> None:
        request_id = f"check-{secrets.token_hex(8)}"
        row = {"request_id": request_id, "method": "check", "time": store.clock(), "answer": bytes(_PAGES)}
        store.db.insert(schema.requests, row)
        store.db.delete(schema.requests, request_id=request_id)

    await store.write_once("check", write_and_delete)
