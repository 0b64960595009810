"""Paths and advantages → rows, and the weights of their tokens.

A row's tokens are its last call's prompt + response; every earlier call of the path is a prefix of it. Each
own call's response is a trained segment; shared ancestors' responses are segments with ``trained=False``.

Invariant: ``token_ids[:start]`` is the call's prompt and ``token_ids[start:end]`` its response, id for id,
for every segment; the mask is 1 on trained segments and nowhere else.

**Weights** are the share of each token in the loss of a step. The loss of a step is ``sum over trained tokens
of weight * loss(token)``; nothing else is divided by anything. Weights are set over the *step's batch*, not
over a mini-batch, and for each policy by itself. With :math:`R` the rollouts that have a trained token,
:math:`C` the trained calls, :math:`T` the trained tokens of the policy:

=============  ==============================================  ========================
``loss_aggregation``  weight of a token                               sum over the batch
=============  ==============================================  ========================
``rollout``    1 / (R * tokens of its rollout)                 1
``nested``     1 / (R * calls of its rollout * tokens of its call)  1
``call``       1 / (C * tokens of its call)                    1
``token``      1 / T                                           1
``constant``   1 / (R * recipe.loss_divisor)                       T / (R * loss_divisor)
=============  ==============================================  ========================

``rollout`` is GRPO's 1/G sum 1/|o_i| sum (arXiv 2402.03300) with all tokens of a rollout as its output;
``nested`` is Flow-GRPO's mean over turns within the mean over rollouts (arXiv 2510.05592);
``token`` is DAPO's (arXiv 2503.14476); ``constant`` with a fixed length is Dr. GRPO's (arXiv 2503.20783).

**Mini-batches.** With k of them the loss of each optimizer step is ``k * sum over its tokens of weight *
loss(token)``. A token thus weighs the same in whichever mini-batch it is drawn, and the mean of the k
gradients is the gradient of the batch, as stochastic gradient descent asks (arXiv 1606.04838, section 3).
Nothing is divided by a mini-batch's own sum: that would give a token beside short rollouts more weight than
one beside long rollouts. For ``constant``, ``rollout`` and rollouts of one row this is what verl computes for
``seq-mean-token-sum-norm`` and ``seq-mean-token-mean``; its ``token-mean`` divides by the mini-batch's own
tokens instead.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentlightning.credit.baselines import Advantage
from agentlightning.credit.digest import canonical_order
from agentlightning.credit.eligibility import Versions, version_of
from agentlightning.credit.forest import CallPath, temperature_of
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


def set_weights(rows: Sequence[Row], recipe: Recipe) -> None:
    """Write the weights of all rows of a step, in place, for each policy by itself. Untrained tokens weigh
    0.
    """
    for policy in {row.policy for row in rows}:
        mine = [row for row in rows if row.policy == policy]
        tokens: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for row in mine:
            tokens[row.rollout_id] += row.trained_tokens
            calls[row.rollout_id] += sum(segment.trained for segment in row.segments)
        for row in mine:
            for segment in row.segments:
                if segment.trained:
                    n = segment.end - segment.start
                    weight = _weight(recipe, n, row.rollout_id, tokens, calls)
                    row.weights[segment.start : segment.end] = Floats([weight]) * n


def _weight(recipe: Recipe, n: int, rollout: str, tokens: Counter[str], calls: Counter[str]) -> float:
    """Weight of each token of a trained call of ``n`` tokens; ``tokens`` and ``calls``: those trained, by
    rollout.
    """
    if recipe.loss_aggregation == "rollout":
        return 1.0 / (len(tokens) * tokens[rollout])
    if recipe.loss_aggregation == "nested":
        return 1.0 / (len(tokens) * calls[rollout] * n)
    if recipe.loss_aggregation == "call":
        return 1.0 / (calls.total() * n)
    if recipe.loss_aggregation == "token":
        return 1.0 / tokens.total()
    return 1.0 / (len(tokens) * recipe.loss_divisor)


def minibatches(rows: Sequence[Row], count: int, seed: int, version: int) -> list[list[Row]]:
    """Divide the rows of a step into ``count`` mini-batches whose sizes differ by at most one row, or into
    as many as there are rows, if these are fewer.

    Which rows are together is a function of the rows, the run's ``seed`` and the ``version`` that is trained:
    every driver, and a resumed run, makes the same optimizer steps, in the same order in each epoch.
    """
    drawn = canonical_order(rows)
    count = min(count, len(drawn))
    if count > 1:
        random.Random(f"{seed} {version}").shuffle(drawn)
    return [drawn[k::count] for k in range(count)]
