"""What an update measured, summed over its tokens and optimizer steps.

Invariant: a figure that has nothing to be measured on is absent, not 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentlightning.types import Correction
from agl_local.training.batch import Tokens
from agl_local.training.correction import MAX_LOG_RATIO, correction_metrics, ratios
from agl_local.training.loss import Loss, Terms
from agl_local.training.pack import Packed
from agl_local.training.score import GapMeter


@dataclass
class Tally:
    """Of one update; ``version`` is the policy version whose tokens count as fresh."""

    version: int
    off_policy_cap: float | None = None
    correction: Correction | None = None
    corrected: bool | None = None
    """Whether fresh tokens are weighed by importance; ``None``: not decided yet."""
    decided_on: float = 0.0
    """Mean gap of the tokens on which that was decided."""
    optimizer_steps: int = 0
    skipped: int = 0
    empty: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    fresh: GapMeter = field(default_factory=GapMeter)
    old: GapMeter = field(default_factory=GapMeter)
    off_policy: list[Tensor] = field(default_factory=list)
    """Importance weights of off-policy tokens, before they are capped."""
    ratios: list[Tensor] = field(default_factory=list)
    """Ratios of trainer to engine of fresh tokens, at the level of ``correction``."""
    measured: set[str] = field(default_factory=set)
    needed: int = 0
    computed: int = 0

    def packed(self, packed: Packed) -> None:
        """Count the positions of a forward pass of the trained network."""
        self.needed += packed.needed
        self.computed += packed.inputs.computed

    def add(self, terms: Terms, loss: Loss) -> None:
        approx = torch.expm1(loss.log_ratio) - loss.log_ratio
        kl = torch.zeros_like(approx) if loss.kl is None else loss.kl
        entropy = -terms.logp.detach() if terms.entropy is None else terms.entropy.detach()
        ones = torch.ones_like(approx)
        self.sums.append(torch.stack([ones, loss.clipped.to(ones.dtype), approx, kl, entropy]).sum(dim=1))

    def add_still(self, logprobs: Tensor) -> None:
        """Tokens without a gradient: unclipped, at ratio 1, and part of the entropy like any other."""
        ones, none = torch.ones_like(logprobs), torch.zeros_like(logprobs)
        self.sums.append(torch.stack([ones, none, none, none, -logprobs]).sum(dim=1))

    def measure(self, tokens: Tokens, logprobs: Tensor) -> None:
        """Compare logprobs of the weights before the first step with the stored ones, each row once. Those of
        off-policy tokens are of another distribution: their quotient is the importance weight.
        """
        if tokens.row_ids[0] in self.measured:
            return
        self.measured.update(tokens.row_ids)
        stale, off = tokens.versions != self.version, tokens.off_policy
        self.fresh.add(tokens, logprobs, ~stale & ~off)
        self.old.add(tokens, logprobs, stale & ~off)
        if self.correction is not None:
            apart = logprobs.detach() - tokens.old
            self.ratios.append(ratios(apart, tokens.segments, self.correction)[~stale & ~off])
        if bool(off.any()):
            self.off_policy.append((logprobs.detach() - tokens.old)[off].clamp(max=MAX_LOG_RATIO).exp())

    def corrects(self) -> bool:
        """Whether this update weighs fresh tokens by importance: decided once, on what was measured when it
        is first asked, which is before the first gradient.
        """
        if self.corrected is None:
            gap, rule = self.fresh.result(), self.correction
            self.decided_on = gap.mean
            self.corrected = bool(gap.tokens) and rule is not None and rule.acts(gap.mean)
        return self.corrected

    def step(self, loss: float, norm: float, stepped: bool) -> None:
        self.optimizer_steps += 1
        self.skipped += not stepped
        self.losses.append(loss)
        self.norms.append(norm)

    def metrics(self, with_kl: bool) -> dict[str, float]:
        """The figures by name; ``with_kl``: the loss had a KL term."""
        out = {
            "optimizer_steps": float(self.optimizer_steps - self.skipped),
            "steps_skipped": float(self.skipped),
            "steps_empty": float(self.empty),
            "tokens_read": float(self.needed),
            "tokens_computed": float(self.computed),
        }
        if self.losses:
            out["loss"] = sum(self.losses) / len(self.losses)
            out["grad_norm"] = sum(self.norms) / len(self.norms)
            count, clipped, approx, kl, entropy = torch.stack(self.sums).cpu().double().sum(0).tolist()
            out |= {"clip_fraction": clipped / count, "approx_kl": approx / count, "entropy": entropy / count}
            out |= {"kl_reference": kl / count} if with_kl else {}
        for name, found in (("", self.fresh.result()), ("stale_", self.old.result())):
            if found.tokens:
                out[f"logprob_gap_{name}max"] = found.max
                out[f"logprob_gap_{name}mean"] = found.mean
                out[f"logprob_gap_{name}tokens"] = float(found.tokens)
        if self.correction is not None:
            acted, gap = bool(self.corrected), self.decided_on
            out |= correction_metrics(self.ratios, self.correction, corrected=acted, gap=gap)
        if self.off_policy and self.off_policy_cap is not None:
            weights = torch.cat(self.off_policy).cpu().double()
            out["off_policy/tokens"] = float(len(weights))
            out["off_policy/capped"] = float((weights > self.off_policy_cap).sum())
            out["off_policy/weight_mean"] = float(weights.clamp(max=self.off_policy_cap).mean())
        return out
