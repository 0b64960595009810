"""How far the engine's logprobs are from the trainer's own: the check that both mean the same tokens.

verl recomputes the logprobs of a step's rows before it updates; its own metric compares probabilities, in
which the gap of an unlikely token does not show.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import transfer_queue as tq

from agl_verl.process.channel import Channel
from agl_verl.rows import STALE


def tell(keys: list[str]) -> None:
    """Tell the driver what the rows ``keys`` of this step say."""
    fields = ["old_log_probs", "rollout_log_probs", "response_mask", STALE]
    data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
    Channel().ask("measured", **measure(*(data[name].unbind() for name in fields)))


def measure(
    ours: Iterable[torch.Tensor],
    captured: Iterable[torch.Tensor],
    masks: Iterable[torch.Tensor],
    stale: Iterable[torch.Tensor],
) -> dict[str, float]:
    """Largest and mean difference over the trained tokens, those of older versions apart: theirs is what the
    policy has learned since. Nothing is said of what there is none of.
    """
    gaps, old = [], []
    for a, b, mask, row in zip(ours, captured, masks, stale, strict=True):
        on = mask.bool()
        gaps.append((a - b)[on].abs())
        old.append(row[on].bool())
    every, late = torch.cat(gaps), torch.cat(old)
    found: dict[str, float] = {}
    for name, of in (("logprob_gap", every[~late]), ("logprob_gap_stale", every[late])):
        if len(of):
            found |= {f"{name}_max": float(of.max()), f"{name}_mean": float(of.mean())}
            found[f"{name}_tokens"] = float(len(of))
    return found
