"""Paths and advantages → rows.

A row's tokens are its last call's prompt + response; every earlier call of the path is a prefix of it. Each
own call's response is a trained segment; shared ancestors' responses are segments with ``trained=False``.

Invariant: ``token_ids[:start]`` is the call's prompt and ``token_ids[start:end]`` its response, id for id,
for every segment; the mask is 1 on trained segments and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from agentlightning.credit.advantage.baselines import Advantage
from agentlightning.credit.eligibility.trainable import Versions, version_of
from agentlightning.credit.merging.forest import CallPath, temperature_of
from agentlightning.types import Call, Recipe, Rollout, Row, Segment
from agentlightning.types.arrays import Flags, Floats, Ints
from agentlightning.types.tokens import as_ids, concat


def build_row(
    path: CallPath,
    rollout: Rollout,
    advantages: Mapping[str, Advantage],
    recipe: Recipe,
    version: Versions = None,
    weighed: Collection[str] = (),
) -> Row:
    """Return one row. Its weights are still 0, because they depend on the whole batch, and its id is the
    rollout's until the rows of the rollout are numbered. ``version``: the version about to be trained.
    ``weighed``: ids of the calls that are trained by importance, at the recipe's temperature.
    """
    end = path.own[-1]
    token_ids = concat(as_ids(end.prompt_ids or ()), end.response_ids or ())
    n = len(token_ids)
    row = Row(
        row_id=rollout.rollout_id,
        rollout_id=rollout.rollout_id,
        policy=end.policy,
        token_ids=token_ids,
        mask=Flags(bytes(n)),
        advantages=Floats(bytes(8 * n)),
        logprobs=Floats(bytes(8 * n)),
        weights=Floats(bytes(8 * n)),
        versions=Ints(b"\xff" * 4 * n),
        temperature=(
            recipe.temperature if end.call_id in weighed else temperature_of(end, recipe.temperature)
        ),
        metadata=_metadata(path, rollout, advantages, version_of(version, end.policy)),
    )
    for call in path.shared:
        start, stop = _span(call)
        row.segments.append(
            Segment(call_id=call.call_id, start=start, end=stop, advantage=0.0, trained=False)
        )
    for call in path.own:
        _train(row, call, advantages[call.call_id].value, call.call_id in weighed)
    return row


def _train(row: Row, call: Call, advantage: float, off_policy: bool) -> None:
    """Write the response of one call into its place in the row."""
    start, stop = _span(call)
    n = stop - start
    row.mask[start:stop] = Flags([1]) * n
    row.advantages[start:stop] = Floats([advantage]) * n
    row.logprobs[start:stop] = call.logprobs or ()
    version = -1 if call.policy_version is None else call.policy_version
    row.versions[start:stop] = call.policy_versions or Ints([version]) * n
    row.segments.append(
        Segment(call_id=call.call_id, start=start, end=stop, advantage=advantage, off_policy=off_policy)
    )
    if call.allowed is not None:
        row.allowed[start] = call.allowed
    if call.grammar is not None:
        row.grammars[start] = call.grammar


def _span(call: Call) -> tuple[int, int]:
    assert call.prompt_ids is not None and call.response_ids is not None
    start = len(call.prompt_ids)
    return start, start + len(call.response_ids)


def _metadata(
    path: CallPath, rollout: Rollout, advantages: Mapping[str, Advantage], version: int | None
) -> dict[str, Any]:
    """The terms of the advantages, for readers of the rows."""
    metadata: dict[str, Any] = {
        "task_id": rollout.task_id,
        "group_id": rollout.group_id,
        "sample": rollout.sample,
        "calls": {call.call_id: _account(call, advantages[call.call_id]) for call in path.own},
    }
    known = [call.policy_version for call in path.own if call.policy_version is not None]
    if version is not None and known:
        metadata["staleness"] = version - min(known)
    return metadata


def _account(call: Call, advantage: Advantage) -> dict[str, Any]:
    return {
        "credit": advantage.credit,
        "baseline": advantage.baseline,
        "scale": advantage.scale,
        "spread": advantage.spread,
        "group": list(advantage.group),
        "pool": list(advantage.pool),
        "zero_reason": advantage.zero_reason,
        "step": advantage.step,
        "tags": call.tags,
    }
