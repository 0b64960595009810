"""Rows with a teacher's advantages: the edit of a run's batch (``agl_distill``), made of recorded rollouts.

The teacher is the policy with noise on its weights, so that it has another opinion of every token.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from agentlightning import GRPO
from agentlightning.types import Batch, Recipe
from agl_distill.edit import edited, pack
from agl_distill.recipe import distill
from agl_local.inspect import LocalInspector

NOISE = 0.05
"""Standard deviation of the noise, in that of each tensor."""
RECIPES: dict[str, Callable[[], Recipe]] = {
    "distill": lambda: distill(epochs=2),
    "distill-forward": lambda: distill(name="distill-forward", epochs=2),
    "distill-jsd": lambda: distill(name="distill-jsd", epochs=2),
    "distill-grpo": lambda: GRPO(name="distill-grpo", epochs=2),
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "distill": {"divergence": "reverse", "coefficient": 1.0},
    "distill-forward": {"divergence": "forward", "coefficient": 1.0},
    "distill-jsd": {"divergence": "jsd", "beta": 0.3, "coefficient": 1.0},
    "distill-grpo": {"divergence": "reverse", "coefficient": 0.5},
}
"""Recipe → the field ``distill`` of its run; the last one adds the teacher to the reward of the task."""


def teacher_of(policy: Path, folder: Path) -> Path:
    """Write the teacher of a policy, the same for every recipe."""
    shutil.copytree(policy, folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(policy / "model.safetensors")
    for tensor in weights.values():
        noise = torch.randn(tensor.shape, generator=generator) * NOISE
        tensor += noise * (tensor.float().std() if tensor.numel() > 1 else 1.0)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def taught(batch: Batch, recipe: Recipe, teacher: Path) -> Batch:
    """Return credit's batch with the teacher's advantages, as the run's own edit makes it."""
    answers = LocalInspector(teacher).logprobs(batch.rows)
    scores = {
        one.call_id: pack(answer[one.start : one.end])
        for row, answer in zip(batch.rows, answers, strict=True)
        for one in row.segments
        if one.trained
    }
    settings = {"beta": 0.5, **SETTINGS[recipe.name]}
    return edited(batch, recipe, {"settings": settings, "scores": scores, "left_out": {}})
