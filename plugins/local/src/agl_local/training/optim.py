"""AdamW as all trainers here use it: decay on matrices only, clipping by the global norm, no step on a broken
gradient.

Sources: AdamW arXiv:1711.05101, clipping arXiv:1211.5063, moments on the host arXiv:2101.06840.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepResult:
    """What an optimizer step did. ``grad_norm`` is the global norm before clipping."""

    grad_norm: float
    stepped: bool


def make_adamw(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    offload: bool = False,
) -> torch.optim.AdamW:
    """An optimizer over the trainable parameters; norms and biases (one dimension) are not decayed.
    ``offload``: see :class:`OffloadedAdamW`.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameters")
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if offload:
        return OffloadedAdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)
    fused = parameters[0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)


class OffloadedAdamW(torch.optim.AdamW):
    """AdamW whose moments are in the host's memory, where it steps too: a device keeps 8 bytes of a float32
    parameter instead of 16, and each step copies gradients there and weights both ways.
    """

    def __init__(self, groups: list[dict[str, Any]], **settings: Any) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []
        super().__init__([{**group, "params": self._twins(group["params"])} for group in groups], **settings)

    def _twins(self, parameters: list[Tensor]) -> list[Tensor]:
        twins = [torch.empty_like(p, device="cpu", requires_grad=True) for p in parameters]
        self._pairs += zip(parameters, twins, strict=True)
        return twins

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # nobody here has a closure
        """Step with the device's gradients."""
        for parameter, twin in self._pairs:
            if parameter.grad is not None:
                twin.copy_(parameter)  # a checkpoint may have been loaded since
                twin.grad = parameter.grad.to("cpu", copy=True)
        super().step(closure)
        for parameter, twin in self._pairs:
            if twin.grad is not None:
                parameter.copy_(twin)
                twin.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the device's gradients; the host's end with each step."""
        for parameter, _ in self._pairs:
            parameter.grad = None


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use ``lr`` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def warmup(step: int, steps: int) -> float:
    """Factor of the learning rate at ``step`` (from 0): grows linearly over ``steps`` steps, then 1."""
    return 1.0 if step >= steps else (step + 1) / (steps + 1)


def cosine(step: int, total: int, warm: int) -> float:
    """Warm-up, then half a cosine from 1 down to 0 at ``total`` (arXiv:1608.03983, without restarts)."""
    if step < warm:
        return warmup(step, warm)
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


def clip_and_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None,
    loss: float,
    what: Sequence[str] = (),
) -> StepResult:
    """Clip, step, and drop the gradients. A loss or gradient that is not finite is logged and leaves
    everything as it was.

    ``what`` names what was trained on, for that message.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    limit = math.inf if clip_norm is None else clip_norm
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
    stepped = math.isfinite(norm) and math.isfinite(loss)
    if stepped:
        optimizer.step()
    else:
        names = ", ".join(what[:4]) + (" …" if len(what) > 4 else "")
        log.error(
            "optimizer step skipped: loss %s, gradient norm %s, trained on %s", loss, norm, names or "a batch"
        )
    optimizer.zero_grad(set_to_none=True)
    return StepResult(norm, stepped)
