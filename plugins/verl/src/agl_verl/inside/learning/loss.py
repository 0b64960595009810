"""The loss of recipes that verl's own cannot say: weighted KL and entropy, calls as sequences, no ratio,
tokens of older versions, tokens that were sampled otherwise than the policy.

The formula is written once, in :mod:`agl_local.training.loss`; here verl's tensors become its terms. verl
calls a loss with what the model computed for a micro-batch and that micro-batch's fields, ours among them,
and FSDP averages gradients over ranks: hence the factor ``dp_size``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from agentlightning.types import Recipe
from agl_local.training.loss import Terms, policy_loss
from agl_verl.rows import OFF_POLICY, SEGMENTS, STALE, WEIGHTS


class RecipeLoss:
    """A loss for verl's ``set_loss_fn``; ``recipe`` as :meth:`Recipe.model_dump` gives it. ``corrected``: its
    ``correction`` acts on fresh tokens.
    """

    def __init__(self, recipe: dict[str, Any], corrected: bool = False) -> None:
        self.recipe = msgspec.convert(recipe, Recipe)
        self.corrected = corrected

    def __call__(
        self, model_output: dict[str, Any], data: Any, dp_group: Any = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The micro-batch's share of the loss, with a gradient, and what was measured."""
        masks = [mask.bool() for mask in data["response_mask"].unbind()]
        logp = flat(no_padding_2_padding(model_output["log_probs"], data), masks)
        if not len(logp):  # nothing but padding; the gradient has to be there, and is zero
            nothing = model_output["log_probs"].values().sum() * 0.0
            return nothing, {"actor/pg_loss": Metric(AggregationType.SUM, nothing)}
        entropy = model_output.get("entropy") if self.recipe.entropy else None
        terms = terms_of(data, masks, logp, entropy, self.recipe.critic, self.corrected)
        found = policy_loss(terms, self.recipe, self.corrected)
        total = found.total * data["dp_size"]
        metrics = {
            "actor/pg_loss": Metric(AggregationType.SUM, total),
            "actor/pg_clipfrac": Metric(AggregationType.MEAN, found.clipped.float().mean()),
            "actor/ppo_kl": Metric(AggregationType.MEAN, -found.log_ratio.mean()),
        }
        if found.kl is not None:
            metrics["actor/kl_reference"] = Metric(AggregationType.MEAN, found.kl.mean())
        return total, metrics


def terms_of(
    data: Any,
    masks: list[torch.Tensor],
    logp: torch.Tensor,
    entropy: Any,
    unweighted: bool,
    corrected: bool,
) -> Terms:
    """The loss's terms for the trained tokens of a micro-batch. ``unweighted``: its advantages are a
    critic's; else weights are in them. ``corrected``: fresh tokens too are weighed against the engine's.
    """
    weights = flat(data[WEIGHTS].unbind(), masks)
    carrier = flat(data["advantages"].unbind(), masks)
    numbers = [flat([row], [mask]) for row, mask in zip(data[SEGMENTS].unbind(), masks, strict=True)]
    calls = torch.cat([torch.stack([torch.full_like(n, i), n], 1) for i, n in enumerate(numbers)])
    proximal, captured, stale, off_policy = (
        flat(data[name].unbind(), masks) for name in ("old_log_probs", "rollout_log_probs", STALE, OFF_POLICY)
    )
    reference = flat(data["ref_log_prob"].unbind(), masks) if "ref_log_prob" in data.keys() else None  # noqa: SIM118
    return Terms(
        logp=logp,
        old=captured if corrected else torch.where(stale.bool() | off_policy.bool(), captured, proximal),
        advantages=carrier if unweighted else torch.where(weights > 0, carrier / weights, 0.0),
        weights=weights,
        segments=torch.unique(calls, dim=0, return_inverse=True)[1],
        stale=stale.bool(),
        off_policy=off_policy.bool(),
        proximal=proximal,
        reference=reference,
        entropy=None if entropy is None else flat(no_padding_2_padding(entropy, data), masks),
    )


def flat(rows: Iterable[torch.Tensor], masks: list[torch.Tensor]) -> torch.Tensor:
    """The trained tokens of all rows, end to end. Padding rows, whose masks are empty, have none: fields that
    verl does not know keep another row's length there.
    """
    kept = [row[: len(mask)][mask] if mask.any() else row[:0] for row, mask in zip(rows, masks, strict=True)]
    return torch.cat(kept)
