"""Explain credit: one token from its reward to its share of the loss, and why a call is not trained.

All functions read a finished batch and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentlightning.credit.baselines import Advantage
from agentlightning.credit.groups import GroupKey, mean
from agentlightning.types import Batch, Recipe, Record, Row, Segment

REASONS: Mapping[str, str] = MappingProxyType(
    {
        "failed-rollout": "its rollout failed, and the failure table leaves such a rollout out of training",
        "no-reward": "there is no finite reward for it: missing is not zero",
        "other-attempt": "it belongs to an attempt that was given up for another one",
        "replaced-by-agent": "the agent handed in transitions of its own, and this call is not among them",
        "superseded": "the SDK sent the request again: the agent never went on from this answer",
        "error": "the engine did not answer it",
        "cancelled": "the agent hung up before the answer was complete",
        "not-selected": "`select`, the run's or a marked class's, does not choose it for training",
        "not-selected-by-agent": "its agent's own code asked to leave it out (`@agl.agent(select=…)`)",
        "frozen-policy": "it went to a policy that this run does not train",
        "off-policy-sampling": "it was sampled from another distribution than is trained (greedy, forced, …) "
        "and the probabilities that it was drawn with are not on record",
        "media": "its prompt holds images or other media: a driver of text cannot recompute its logprobs",
        "over-length": "its prompt was longer than the policy takes",
        "budget": "the budget of its rollout or of the run was spent: the gateway refused it",
        "no-ids": "the engine gave no token ids for it",
        "empty-response": "the answer has no token",
        "empty-prompt": "its prompt has no token, so nothing predicts the first one of the answer",
        "outside-vocabulary": "it has token ids that the policy's vocabulary does not have",
        "mismatch": "gateway and wire layer contradict each other about it",
        "mismatch-by-agent": "the spans of its agent, which is trusted, contradict the gateway about it",
        "no-logprobs": "the engine gave no logprobs for it",
        "bad-logprobs": "one of its logprobs is not finite",
        "stale": "it was sampled by a policy version older than the recipe's `max_staleness` allows",
        "version-ahead": "it claims a policy version later than the one that was served",
        "credit-error": "the credit rule had no usable answer for its rollout; the log says why",
        "zero-std": "its group has one value for all: nothing to prefer (filter_zero_std_groups)",
        "group-of-one": "its group has one rollout: nothing to compare it with (filter_zero_std_groups)",
        "not-last": "the rule `last` trains the last request only",
        "not-recorded": "the wire layer saw it, the gateway did not: it was made past the gateway",
    }
)
"""Ledger reason → sentence that explains why a call is not trained."""


def group_values(
    records: Iterable[Record], advantages: Mapping[str, Advantage], group: GroupKey
) -> dict[str, float]:
    """Return rollout id → its value in ``group``: the mean credit of its calls there."""
    rollouts = {call.call_id: record.rollout.rollout_id for record in records for call in record.calls}
    credits: dict[str, list[float]] = {}
    for call_id, one in advantages.items():
        if one.group == group:
            credits.setdefault(rollouts[call_id], []).append(one.credit)
    return {rollout: mean(values) for rollout, values in credits.items()}


def weight_share(rows: Sequence[Row], recipe: Recipe, row: Row, segment: Segment) -> dict[str, Any]:
    """Return the terms of the weight of the tokens of ``segment`` (see :mod:`agentlightning.credit.rows`).

    ``formula``: with the numbers in it, e.g. ``1 / (64 rollouts × 13 tokens of its rollout)``. ``rollouts``,
    ``calls``, ``tokens``: those of the step and the policy that are trained. ``own``: trained tokens of its
    rollout. ``call``: tokens of its call.
    """
    mine = [other for other in rows if other.policy == row.policy]
    rollouts = len({other.rollout_id for other in mine})
    calls = sum(s.trained for other in mine for s in other.segments)
    tokens = sum(other.trained_tokens for other in mine)
    own = sum(other.trained_tokens for other in mine if other.rollout_id == row.rollout_id)
    turns = sum(s.trained for other in mine if other.rollout_id == row.rollout_id for s in other.segments)
    length = segment.end - segment.start
    formula = {
        "rollout": f"1 / ({rollouts} rollouts × {own} tokens of its rollout)",
        "nested": f"1 / ({rollouts} rollouts × {turns} calls of its rollout × {length} tokens of its call)",
        "call": f"1 / ({calls} calls × {length} tokens of its call)",
        "token": f"1 / {tokens} tokens",
        "constant": f"1 / ({rollouts} rollouts × divisor {recipe.loss_divisor:g})",
    }[recipe.loss_aggregation]
    counts = {"rollouts": rollouts, "calls": calls, "tokens": tokens, "own": own, "call": length}
    return {"formula": formula, **counts}


def find_segment(rows: Sequence[Row], call_id: str) -> tuple[Row, Segment] | None:
    """Return the row that trains a call, and the call's segment in it; ``None`` if no row does."""
    found = ((row, one) for row in rows for one in row.segments if one.call_id == call_id and one.trained)
    return next(found, None)


def trace_token(batch: Batch | Sequence[Row], call_id: str, index: int) -> dict[str, Any]:
    """Return the row and position of the ``index``-th response token of a call, with its advantage and
    weight.

    ``credit - baseline``, over ``scale`` (0 with a ``zero_reason``), plus ``step`` is ``advantage``;
    ``weight * advantage`` is the factor of the token's log-probability gradient at ratio 1. ``KeyError`` if
    no row trains the call (its ledger says why), ``IndexError`` if it has no such token.
    """
    found = find_segment(batch.rows if isinstance(batch, Batch) else batch, call_id)
    if found is None:
        raise KeyError(f"no row trains call {call_id!r}; the ledger of its rollout has the reason")
    row, segment = found
    if not 0 <= index < segment.end - segment.start:
        n = segment.end - segment.start
        raise IndexError(f"call {call_id!r} has {n} response tokens; there is no token {index}")
    at = segment.start + index
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
