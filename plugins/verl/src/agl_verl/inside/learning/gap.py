"""How far the engine's logprobs are from the trainer's own: the check that both mean the same tokens.

verl recomputes the logprobs of a step's rows before it updates; its own metric compares probabilities, in
which the gap of an unlikely token does not show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import transfer_queue as tq

from agentlightning.types import Correction
from agl_local.training.correction import MAX_LOG_RATIO, correction_metrics, ratios
from agl_verl.process.channel import Channel
from agl_verl.rows import OFF_POLICY, SEGMENTS, STALE, Step


def tell(keys: list[str], step: Step) -> bool:
    """Tell the driver what the rows ``keys`` of this step say. Return whether the loss is to weigh fresh
    tokens by importance.
    """
    fields = ["old_log_probs", "rollout_log_probs", "response_mask", STALE, OFF_POLICY, SEGMENTS]
    data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
    columns = [list(data[name].unbind()) for name in fields]
    trainer, engine, mask, late, off, _ = columns
    found = measure(trainer, engine, mask, late, off, step.off_policy_cap)
    found |= compare(columns, step.correction)
    Channel().ask("measured", **found)
    return bool(found.get("correction/corrected"))


def compare(columns: Sequence[Sequence[torch.Tensor]], rule: Correction | None) -> dict[str, float]:
    """Return what the ratios of trainer to engine say of the fresh tokens of all rows, and whether they are
    to be corrected, which the whole step decides. ``columns``: of each row the logprobs of trainer and
    engine, mask, staleness, off-policy marks and calls.
    """
    if rule is None:
        return {}
    found, apart = [], []
    for a, b, mask, late, off, calls in zip(*columns, strict=True):
        on = mask.bool()
        fresh = ~late[on].bool() & ~off[on].bool()
        log_ratio = (a - b)[on].double()
        calls_of = torch.unique(calls[on], return_inverse=True)[1]
        found.append(ratios(log_ratio, calls_of, rule)[fresh])
        apart.append(log_ratio[fresh].abs())
    every = torch.cat(apart)
    gap = float(every.mean()) if len(every) else 0.0
    corrected = bool(len(every)) and rule.acts(gap)
    return correction_metrics(found, rule, corrected=corrected, gap=gap)


def measure(
    ours: Iterable[torch.Tensor],
    captured: Iterable[torch.Tensor],
    masks: Iterable[torch.Tensor],
    stale: Iterable[torch.Tensor],
    off_policy: Iterable[torch.Tensor],
    off_policy_cap: float | None,
) -> dict[str, float]:
    """Largest and mean difference over the trained tokens, those of older versions apart: theirs is what the
    policy has learned since. Of off-policy tokens, the number, how many weights were capped, and the mean
    weight. Nothing is said of what there is none of.
    """
    apart, old, other = [], [], []
    for a, b, mask, late_row, off_row in zip(ours, captured, masks, stale, off_policy, strict=True):
        on = mask.bool()
        apart.append((a - b)[on])
        old.append(late_row[on].bool())
        other.append(off_row[on].bool())
    every, late, off = torch.cat(apart), torch.cat(old), torch.cat(other)
    found: dict[str, float] = {}
    for name, of in (("logprob_gap", every[~late & ~off]), ("logprob_gap_stale", every[late & ~off])):
        if len(of):
            found |= {f"{name}_max": float(of.abs().max()), f"{name}_mean": float(of.abs().mean())}
            found[f"{name}_tokens"] = float(len(of))
    if off_policy_cap is not None and bool(off.any()):
        weights = every[off].double().clamp(max=MAX_LOG_RATIO).exp()
        found["off_policy/tokens"] = float(len(weights))
        found["off_policy/capped"] = float((weights > off_policy_cap).sum())
        found["off_policy/weight_mean"] = float(weights.clamp(max=off_policy_cap).mean())
    return found
