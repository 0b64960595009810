"""Explain one trained token: from the reward to its share of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning.types import Batch, Row


def trace_token(batch: Batch | Sequence[Row], call_id: str, index: int) -> dict[str, Any]:
    """Where the ``index``-th response token of a call went, and what it is worth there.

    ``credit - baseline``, over ``scale``, is ``advantage`` (0 if ``flat`` says why); ``weight * advantage``
    is the factor of the token's log-probability gradient at ratio 1. ``KeyError`` if no row trains the call
    (its ledger says why), ``IndexError`` if it has no such token.
    """
    rows = batch.rows if isinstance(batch, Batch) else batch
    for row in rows:
        for segment in row.segments:
            if segment.call_id == call_id and segment.trained:
                return _trace(row, segment.start, segment.end, call_id, index)
    raise KeyError(f"no row trains call {call_id!r}; the ledger of its rollout has the reason")


def _trace(row: Row, start: int, end: int, call_id: str, index: int) -> dict[str, Any]:
    if not 0 <= index < end - start:
        raise IndexError(f"call {call_id!r} has {end - start} response tokens; there is no token {index}")
    at = start + index
    account: dict[str, Any] = row.metadata.get("calls", {}).get(call_id, {})
    return {
        "call_id": call_id,
        "rollout_id": row.rollout_id,
        "policy": row.policy,
        "row_id": row.row_id,
        "position": at,
        "token_id": row.token_ids[at],
        "logprob": row.logprobs[at],
        "version": row.versions[at],
        "temperature": row.temperature,
        **account,
        "advantage": row.advantages[at],
        "weight": row.weights[at],
        "weight_times_advantage": row.weights[at] * row.advantages[at],
    }
