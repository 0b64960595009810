"""The loop that SFT and DPO share: AdamW with warm-up and a cosine schedule over a fixed number of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from agl_local.network.model import LanguageModel
from agl_local.training.optim import clip_and_step, cosine, make_adamw, set_lr

T = TypeVar("T")
Progress = Callable[[int, Mapping[str, float]], None]


def fit(
    model: LanguageModel,
    backward: Callable[[int], dict[str, float]],
    *,
    steps: int,
    lr: float,
    warmup: int,
    weight_decay: float,
    clip_norm: float | None,
    what: str,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train ``model`` in place. ``backward(step)`` adds the gradient of a batch and returns metrics with
    ``loss``.

    ``progress(step, metrics)`` is called after each step. Returns the last metrics; ``loss`` is then the mean
    over the last tenth of the steps, ``loss_last`` the last one's; added are ``grad_norm`` (before clipping),
    ``steps_skipped`` (loss or gradient not finite) and ``seconds``.
    """
    optimizer = make_adamw(model, lr=lr, weight_decay=weight_decay)
    optimizer.zero_grad(set_to_none=True)
    losses: list[float] = []
    skipped = 0
    metrics: dict[str, float] = {}
    began = time.perf_counter()
    for step in range(steps):
        set_lr(optimizer, lr * cosine(step, steps, warmup))
        metrics = backward(step)
        losses.append(metrics["loss"])
        result = clip_and_step(model, optimizer, clip_norm, losses[-1], [f"{what} step {step}"])
        skipped += not result.stepped
        recent = losses[-max(1, steps // 10) :]
        metrics |= {
            "loss": sum(recent) / len(recent),
            "loss_last": losses[-1],
            "grad_norm": result.grad_norm,
            "steps_skipped": float(skipped),
            "seconds": time.perf_counter() - began,
        }
        if progress is not None:
            progress(step, metrics)
    return metrics


def shuffled(examples: Sequence[T], size: int, seed: int) -> Iterator[list[T]]:
    """Batches of ``size`` without end; every example is used once before any is used again."""
    if not examples or size < 1:
        raise ValueError(f"training needs examples and a batch size >= 1, got {len(examples)} and {size}")
    generator = torch.Generator().manual_seed(seed)
    queue: list[int] = []
    while True:
        while len(queue) < size:
            queue.extend(torch.randperm(len(examples), generator=generator).tolist())
        yield [examples[i] for i in queue[:size]]
        queue = queue[size:]
