"""Weights: the share of each token in the loss of a step.

The loss of a step is ``sum over trained tokens of weight * loss(token)``; nothing else is divided by
anything. Weights are set over the *step's batch*, not over a mini-batch, and for each policy by itself. With
:math:`R` the rollouts that have a trained token, :math:`C` the trained calls, :math:`T` the trained tokens of
the policy:

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
from collections.abc import Sequence

from agentlightning.credit.fingerprints.digest import canonical_order
from agentlightning.types import Recipe, Row
from agentlightning.types.arrays import Floats


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
