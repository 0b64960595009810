"""Optimizer steps that verl would make of a mini-batch in which nothing pulls: momentum alone would move the
weights, and the local driver makes none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from verl.utils import tensordict_utils


def any_token(data: Any) -> bool:
    """Whether a mini-batch trains a token, on any rank: what a critic learns from."""
    return bool(int(data["batch_num_tokens"]))


def any_pull(data: Any) -> bool:
    """Whether this rank's part of a mini-batch has a policy gradient, a KL or an entropy term."""
    masks = data["response_mask"].unbind()
    if not any(bool(mask.any()) for mask in masks):
        return False
    if "ref_log_prob" in data.keys():  # noqa: SIM118 - a TensorDict is no mapping
        return True
    if tensordict_utils.get_non_tensor_data(data, "calculate_entropy", False):
        return True
    rows = zip(data["advantages"].unbind(), masks, strict=True)
    return any(bool(advantages[mask.bool()].any()) for advantages, mask in rows)


def stepping(engine: type, pulls: Callable[[Any], bool]) -> type:
    """``engine``, one of verl's, which makes an optimizer step where ``pulls`` says so of a rank's part."""

    class Stepping(engine):  # type: ignore[misc]
        """Overrides where verl reads a mini-batch, and where it steps."""

        pulled = True
        """Whether the latest mini-batch pulls, on any rank."""

        def forward_backward_batch(self, data: Any, *args: Any, **given: Any) -> Any:
            found = super().forward_backward_batch(data, *args, **given)
            if "advantages" in data.keys():  # noqa: SIM118 - an update, and no scoring
                self.pulled = self._on_any_rank(pulls(data))
            return found

        def _on_any_rank(self, here: bool) -> bool:
            if not torch.distributed.is_initialized():
                return here
            both = torch.tensor(float(here), device=next(self.module.parameters()).device)
            torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, self.get_data_parallel_group())
            return bool(both)

        def optimizer_step(self) -> float:
            if not self.pulled:
                self.optimizer_zero_grad()
                return 0.0
            norm: float = super().optimizer_step()
            return norm

    return Stepping
