"""An RL algorithm as data."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentlightning.types.base import JsonDump

LossAggregation = Literal["rollout", "nested", "call", "token", "constant"]


class Correction(JsonDump, msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How tokens are weighed whose engine and trainer disagree about their probability.

    The ratio of a token is the trainer's probability before the update over the engine's recorded one.
    """

    kind: Literal["truncate", "mask"] = "truncate"
    """``truncate``: the ratio, at most ``cap`` (TIS); ``mask``: the ratio, and 0 outside ``[floor, cap]``
    (MIS, IcePop)."""
    level: Literal["token", "sequence"] = "token"
    """Whether each token has a ratio of its own, or that of its whole call, the product of its tokens'."""
    cap: float = 2.0
    """The largest weight of a token."""
    floor: float | None = None
    """``mask``: the smallest weight; ``None``: 1 / ``cap``."""
    threshold: float = 0.01
    """Fresh tokens are weighed in a step in which the logprobs of engine and trainer differ by at least this
    in the mean; 0: in every step."""

    def acts(self, gap: float) -> bool:
        """Return whether fresh tokens are weighed where logprobs differ by ``gap`` in the mean."""
        return not gap < self.threshold

    def reason(self, gap: float) -> str:
        """Return why a step with this gap is corrected, or is not, for a log."""
        differ = f"engine and trainer differ by {gap:.3g} in the mean logprob of a token"
        if self.acts(gap):
            return (
                f"{differ}, at or above recipe.correction.threshold = {self.threshold:g}: tokens are weighed "
                "by importance from this step on"
            )
        return (
            f"{differ}, below recipe.correction.threshold = {self.threshold:g}: tokens are no longer weighed "
            "by importance"
        )


class Recipe(JsonDump, msgspec.Struct, kw_only=True, frozen=True):
    """An RL algorithm as data. It owns no loop: a driver runs it."""

    name: str
    group_size: int = 8
    """Rollouts per task."""
    credit: str = "broadcast"
    """Credit rule: rewards → one number per call."""
    gamma: float = 1.0
    """Discount of the rule ``discounted`` and of ``step_weight``, per later call; with a critic that of GAE,
    per token, and none of the rule.
    """
    lam: float = 1.0
    """λ of generalised advantage estimation (arXiv 1506.02438), which needs a critic."""
    step_weight: float = 0.0
    """Weight of a second advantage, which compares calls of a group that were made in the same state by their
    discounted returns (GiGPO, :mod:`agentlightning.credit.baselines`); 0: off."""
    baseline: str = "group"
    """``group`` (mean of the group), ``rloo`` (mean of the others), ``batch``, ``none``, or a plugin's."""
    group_by: list[str] = msgspec.field(default_factory=lambda: ["group"])
    """Keys a baseline groups by: ``group`` (samples of one task), ``task``, ``batch``, ``policy``, any tag;
    and ``turn``: within a group, the n-th call of an agent is compared with its n-th calls in other rollouts.
    The built-in recipes name it for rules that give a rollout's calls credits of their own.
    """
    scale: Literal["std", "none"] = "none"
    """Divide advantages by the group's standard deviation (GRPO)."""
    loss_aggregation: LossAggregation = "rollout"
    """The unit over which the loss is a mean (:mod:`agentlightning.credit.rows`)."""
    loss_divisor: float = 1.0
    """Divisor of ``loss_aggregation="constant"``: a token weighs 1 / (rollouts · loss_divisor)."""
    ratio_level: Literal["token", "sequence"] = "token"
    """Whether the probability ratio is taken for each token, or for each call as a whole (GSPO; TRL's
    ``importance_sampling_level``)."""
    loss: str = "clip"
    """``clip`` (PPO's surrogate), ``cispo`` (the ratio is a bounded weight) or ``reinforce`` (no ratio)."""
    clip_low: float = 0.2
    """Ratios below ``1 - clip_low`` are clipped."""
    clip_high: float = 0.2
    """Ratios above ``1 + clip_high`` are clipped; for ``cispo`` that is the largest weight."""
    clip_ratio_c: float | None = None
    """Dual clip for negative advantages (arXiv 1912.09729); ``None``: off."""
    kl: float = 0.0
    """Coefficient of the KL penalty to the reference policy."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""
    epochs: int = 1
    """Passes over the batch of a step."""
    minibatches: int = 1
    """Optimizer steps per batch and epoch."""
    max_staleness: int = 0
    """A token sampled more than this many versions ago is not trained (reason ``stale``)."""
    importance_cap: float | None = None
    """Truncated importance sampling for stale tokens; ``None``: off."""
    correction: Correction | None = msgspec.field(default_factory=Correction)
    """Importance weights of tokens that the version being trained sampled, where its engine computes other
    probabilities than the trainer (``docs/credit.md``). Kind, level and floor hold for stale tokens too,
    whose cap is ``importance_cap``. ``None``: off."""
    off_policy_cap: float | None = 2.0
    """Truncated importance sampling for calls that were sampled otherwise than the policy (grammar, forced
    tool, own temperature) where the engine reports the probabilities of what it drew: the largest weight of
    a token. ``None``: such calls are left out, as ``off-policy-sampling``."""
    filter_zero_std_groups: bool = False
    """Leave groups with equal credit out of the normalisation (their gradient is zero anyway)."""
    temperature: float = 1.0
    """Temperature at which rollouts are sampled, and at which probabilities are trained."""
    top_p: float = 1.0
    """Share of the probability that is sampled from; 1: all."""
    top_k: int = -1
    """Number of most likely tokens that are sampled from; -1: all."""
    critic: bool = False
    """Advantages come from a value model (GAE); a call's credit is the return it learns
    (:mod:`agentlightning.credit.checks`).
    """
    merge: bool = True
    """Merge calls that extend each other into one row."""

    def uses(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: a driver must implement these."""
        default, own = Recipe(name=self.name), msgspec.structs.asdict(self)
        return {name: value for name, value in own.items() if value != getattr(default, name)}
