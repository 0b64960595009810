"""One update of agl-local's trainer."""

from __future__ import annotations

from typing import Any

import torch
from batch import LR, Sampled

from agentlightning.types import Recipe, Row
from agl_local.policy.folder import load_policy
from agl_local.training.update import Updater


class Subject:
    """The trainer as the driver makes it, with its defaults for micro-batches and sharing."""

    def __init__(self, folder: str, threads: int) -> None:
        policy = load_policy(folder)
        self.updater = Updater(policy.model, Recipe(name="bench"), lr=LR, threads=threads)
        self.version = f"torch {torch.__version__}"

    def update(self, sequences: list[Sampled]) -> dict[str, float]:
        """Train one step on the sequences; return the gradient's norm."""
        trained = sum(len(one["answer"]) for one in sequences)
        rows = [row(str(i), one, 1.0 / trained) for i, one in enumerate(sequences)]
        metrics = self.updater.update(rows, version=0)
        return {"grad_norm": metrics["grad_norm"], "logprob_gap_max": metrics["logprob_gap_max"]}


def row(name: str, one: Sampled, weight: float) -> Row:
    """Return a sequence as credit would write it: each token of the answer is trained with one weight."""
    before, after = len(one["prompt"]), len(one["answer"])

    def trained(value: Any, rest: Any) -> list[Any]:
        return [rest] * before + [value] * after

    return Row(
        row_id=name,
        rollout_id=name,
        policy="bench",
        token_ids=one["prompt"] + one["answer"],
        mask=trained(1, 0),
        advantages=trained(one["advantage"], 0.0),
        logprobs=[0.0] * before + one["logprobs"],
        weights=trained(weight, 0.0),
        versions=trained(0, -1),
    )
