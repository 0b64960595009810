"""How far the engine's logprobs are from the trainer's own: the check that both mean the same tokens.

verl recomputes the logprobs of a step's rows before it updates; its own metric compares probabilities, in
which the gap of an unlikely token does not show.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import transfer_queue as tq

from agl_verl.channel import Channel


def tell(keys: list[str]) -> None:
    """Tell the driver what the rows ``keys`` of this step say."""
    fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
    Channel().ask("measured", **measure(*(data[name].unbind() for name in fields)))


def measure(
    ours: Iterable[torch.Tensor], captured: Iterable[torch.Tensor], masks: Iterable[torch.Tensor]
) -> dict[str, float]:
    """Largest and mean difference over the trained tokens; empty if there are none."""
    gaps = torch.cat([(a - b)[m.bool()].abs() for a, b, m in zip(ours, captured, masks, strict=True)])
    if not len(gaps):
        return {}
    return {
        "logprob_gap_max": float(gaps.max()),
        "logprob_gap_mean": float(gaps.mean()),
        "logprob_gap_tokens": float(len(gaps)),
    }
