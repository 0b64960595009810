"""Importance weights between the engine that samples and the trainer that learns.

An engine computes the probabilities of the same weights by other kernels, in other precision, or from
quantised weights, so it samples from ``μ`` while the trainer's gradient is of ``π``: training is off-policy
without saying so. The gradient of an expectation under ``π`` weighs a token drawn from ``μ`` by their ratio:

    r_t  level "token":     exp(log π_t − log μ_t)
         level "sequence":  exp(Σ log π − log μ over the trained tokens of t's call)
    c_t  kind "truncate":   min(r_t, cap)                         TIS
         kind "mask":       r_t if floor ≤ r_t ≤ cap, else 0      MIS; by token: IcePop

TIS: F. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", after
arXiv:1802.01561. IcePop: arXiv:2510.18855. ``log π`` is the trainer's before the update, so ``c`` has no
gradient. All tensors are [N], one entry per trained token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentlightning.types import Correction

# exp(20) = 5e8: beyond it a ratio says only "outside every clip range", and exp would soon overflow.
MAX_LOG_RATIO = 20.0
TAIL = 0.99
"""Share of the tokens whose ratio is at most the reported tail."""


def ratios(log_ratio: Tensor, segments: Tensor, rule: Correction | None) -> Tensor:
    """Return ``r`` of each token. ``segments``: index of its call; ``None`` as rule: by token."""
    if rule is not None and rule.level == "sequence":
        log_ratio = segment_sum(log_ratio, segments)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def weigh(ratio: Tensor, cap: float, rule: Correction | None) -> Tensor:
    """Return ``c`` of tokens with these ratios; ``None`` as rule: truncated."""
    if rule is None or rule.kind == "truncate":
        return ratio.clamp(max=cap)
    floor = 1.0 / cap if rule.floor is None else rule.floor
    return torch.where((ratio >= floor) & (ratio <= cap), ratio, torch.zeros_like(ratio))


def segment_sum(values: Tensor, segments: Tensor) -> Tensor:
    """Each token gets the sum of ``values`` over the trained tokens of its segment."""
    size = int(segments.max()) + 1 if len(segments) else 0
    return values.new_zeros(size).index_add(0, segments, values)[segments]


def correction_metrics(
    found: Sequence[Tensor], rule: Correction, *, corrected: bool, gap: float
) -> dict[str, float]:
    """Return what the ratios ``found`` of a step's fresh tokens say: mean, tail and maximum; whether they
    were corrected, and the mean gap and the threshold that decided it; and of corrected ones, the mean weight
    and the shares that were truncated and masked. Empty without a token.
    """
    ratio = torch.cat(list(found)).cpu().double() if found else torch.empty(0)
    if not len(ratio):
        return {}
    at = max(1, round(TAIL * len(ratio)))
    metrics = {
        "correction/ratio_mean": float(ratio.mean()),
        "correction/ratio_p99": float(ratio.kthvalue(at).values),
        "correction/ratio_max": float(ratio.max()),
        "correction/gap": gap,
        "correction/threshold": rule.threshold,
        "correction/corrected": float(corrected),
    }
    if corrected:
        weight = weigh(ratio, rule.cap, rule)
        changed = weight != ratio
        masked = changed & (weight == 0)
        metrics["correction/weight_mean"] = float(weight.mean())
        metrics["correction/truncated_share"] = float((changed & ~masked).double().mean())
        metrics["correction/masked_share"] = float(masked.double().mean())
    return metrics
