"""What a driver decides about rows and steps by its recipe, wherever the gradient is computed.

Invariant: a driver whose weights are elsewhere (agl-tinker's) trains the same rows by the same terms as the
one here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from agentlightning.credit.digest import canonical_order
from agentlightning.types import Batch, Recipe, Row
from agl_local.training.batch import RowError, Tokens, check_row, has_gradient
from agl_local.training.loss import Terms

log = logging.getLogger(__name__)


def due(every: int, finished: int, steps: int) -> bool:
    """Whether a checkpoint of ``finished`` steps is: one every ``every`` (0: none), one after the last."""
    return bool(every) and (finished % every == 0 or finished == steps)


def rows_of(batch: Batch, policy: str) -> list[Row]:
    """The rows of a batch, which must all be those of ``policy``."""
    if others := sorted({row.policy for row in batch.rows} - {policy}):
        raise ValueError(f"the driver of policy {policy!r} was given rows of {others}")
    return list(batch.rows)


def checked(rows: Sequence[Row], recipe: Recipe, vocab_size: int, **more: Any) -> list[Row]:
    """The rows that hold trained tokens, in canonical order. Raises RowError for one that is unfit, or there
    twice. ``more``: as for :func:`~agl_local.training.batch.check_row`.
    """
    seen: set[str] = set()
    for row in rows:
        check_row(row, vocab_size, segments=by_call(recipe), **more)
        if row.row_id in seen:
            raise RowError(f"row {row.row_id} occurs twice in one batch")
        seen.add(row.row_id)
    return canonical_order([row for row in rows if row.trained_tokens])


def by_call(recipe: Recipe) -> bool:
    """Whether the loss needs to know which call a token belongs to."""
    of_correction = recipe.correction is not None and recipe.correction.level == "sequence"
    return recipe.ratio_level == "sequence" or of_correction


def is_live(row: Row, recipe: Recipe) -> bool:
    """Whether the row has a gradient."""
    return any(row.weights) if recipe.kl or recipe.entropy else has_gradient(row)


def anchored(rows: Sequence[Row], recipe: Recipe) -> bool:
    """Whether the logprobs before the first of several steps are an anchor of the later ones."""
    if recipe.minibatches == 1 and recipe.epochs == 1:
        return False
    weighed = any(s.trained and s.off_policy for row in rows for s in row.segments)
    return recipe.importance_cap is not None or recipe.correction is not None or weighed


def terms_of(
    tokens: Tokens,
    logp: Tensor,
    version: int,
    proximal: Mapping[str, Tensor],
    reference: Tensor | None,
    entropy: Tensor | None = None,
) -> Terms:
    """What the loss of ``tokens`` needs. ``version``: that of fresh tokens; ``proximal``: the logprobs of
    each row before the first step, by its id; empty: none are needed.
    """
    return Terms(
        logp=logp,
        old=tokens.old,
        advantages=tokens.advantages,
        weights=tokens.weights,
        segments=tokens.segments,
        stale=tokens.versions != version,
        off_policy=tokens.off_policy,
        proximal=torch.cat([proximal[row_id] for row_id in tokens.row_ids]) if proximal else None,
        reference=reference,
        entropy=entropy,
    )


def token_counts(rows: Sequence[Row], recipe: Recipe, version: int) -> dict[str, float]:
    """Metrics: tokens that are trained, that have no gradient, and that versions before ``version`` drew."""
    live = sum(row.trained_tokens for row in rows if is_live(row, recipe))
    stale = sum(on and v != version for row in rows for on, v in zip(row.mask, row.versions, strict=True))
    return {
        "tokens_trained": float(live),
        "tokens_zero_advantage": float(sum(row.trained_tokens for row in rows) - live),
        "tokens_stale": float(stale),
    }


class Corrections:
    """Says when fresh tokens begin to be weighed by importance, and when that ends."""

    def __init__(self, policy: str, recipe: Recipe) -> None:
        self._policy, self._recipe = policy, recipe
        self._acts = 0.0

    def say(self, metrics: Mapping[str, float]) -> None:
        """``metrics``: those of an update."""
        acts = metrics.get("correction/corrected", self._acts)
        if acts != self._acts:
            self._acts = acts
            assert self._recipe.correction is not None
            why = self._recipe.correction.reason(metrics["correction/gap"])
            log.warning("policy %r: %s", self._policy, why)
