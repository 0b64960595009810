"""LoRA's gradient: verl's, and what agl-local's gradient of the whole weights makes of it.

    python bench/verl_parity/lora.py [--rank 8] [--alpha 16] [--ranks 1]        (makes the environment `verl`)

Recorded rollouts of the calc_x agent go through verl's trainer with LoRA, for two optimizer steps; before
each, its worker tells the matrices A and B and their gradients. agl-local, which knows no LoRA, takes the
weights ``W + alpha / rank * B @ A`` and computes the gradient G of the same loss; by the chain rule that of B
is ``alpha / rank * G @ A.T``, that of A ``alpha / rank * B.T @ G``. In the first step B is zero, in the
second it is not. The recipe is REINFORCE, whose loss has no memory of the weights that sampled the rows.
The last line is one JSON object, kept in ``bench/results/verl_parity.json``; exit status 1 where they differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import run
import torch
from run import POLICY, ROOT, Tensors, apart, keep, rate

from agentlightning import GRPO
from agentlightning.credit.assign import assign
from agentlightning.types import Batch, Recipe
from agl_local.policy.folder import load_policy
from agl_local.training.update import Updater

PREFIX, WEIGHT = "base_model.model.", ".default.weight"


def matrices(step: Tensors, kind: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Layer → A and B of what the tap wrote as ``kind`` (``before``, ``grad``)."""
    begin = f"{kind}/{PREFIX}"
    names = {name for name in step if name.startswith(begin) and f".lora_A{WEIGHT}" in name}
    layers = {name.removeprefix(begin).removesuffix(f".lora_A{WEIGHT}") for name in names}
    return {
        layer: (step[f"{begin}{layer}.lora_A{WEIGHT}"], step[f"{begin}{layer}.lora_B{WEIGHT}"])
        for layer in layers
    }


def expected(step: Tensors, recipe: Recipe, batch: Batch, scale: float) -> Tensors:
    """The gradient of every A and B, from that of the whole weights."""
    before = matrices(step, "before")
    policy = load_policy(POLICY)
    whole = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    for layer, (a, b) in before.items():
        whole[f"{layer}.weight"] += scale * (b @ a)
    policy.model.load_state_dict(whole)
    grads: Tensors = {}

    def take(*_: Any) -> None:
        grads.update({n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None})

    updater = Updater(policy.model, recipe, lr=run.TINY, clip_norm=run.NO_CLIP, share=False)
    updater.optimizer.register_step_pre_hook(take)
    updater.update(list(batch.rows), 0)
    made: Tensors = {}
    for layer, (a, b) in before.items():
        whole_grad = grads[f"{layer}.weight"]
        made[f"{layer}.A"], made[f"{layer}.B"] = scale * (b.T @ whole_grad), scale * (whole_grad @ a.T)
    return made


def found(step: Tensors) -> Tensors:
    """The gradient of every A and B, as verl's worker had it."""
    told = matrices(step, "grad").items()
    return {f"{layer}.{name}": pair[i] for layer, pair in told for i, name in enumerate("AB")}


def main() -> int:
    """Compare; print."""
    parser = argparse.ArgumentParser(description="LoRA's gradient on verl.")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel training workers of verl")
    asked = parser.parse_args()
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    run.MORE["lora"] = {"rank": asked.rank, "alpha": asked.alpha}
    recipe = GRPO(name="reinforce", loss="reinforce", epochs=2)
    with tempfile.TemporaryDirectory(prefix="verl-parity-lora-") as scratch:
        folder = Path(scratch)
        batch = assign(asyncio.run(run.rollouts(folder / "collect")), recipe, version=0)
        written, report, _ = asyncio.run(
            run.through_verl(python, recipe, batch, folder / "lora", asked.ranks)
        )
    once = GRPO(name="reinforce", loss="reinforce")
    steps = [apart(expected(step, once, batch, asked.alpha / asked.rank), found(step)) for step in written]
    frozen = [n for step in written for n in step if n.startswith("grad/") and ".lora_" not in n]
    told = {
        "recipe": "lora",
        "ranks": asked.ranks,
        "rank": asked.rank,
        "rows": len(batch.rows),
        "layers": len(matrices(written[0], "before")),
        "gradient_cosine": min(step["cosine"] for step in steps),
        "gradient_relative_error": max(step["relative_error"] for step in steps),
        "gradient_norms": [step["norm"] for step in steps],
        "frozen_with_a_gradient": len(frozen),
        "learning_rate": rate(recipe),
        "logprob_gap_max": report.metrics["logprob_gap_max"],
    }
    if len(steps) == 2 and not frozen:
        keep([told], "lora.py")
    print(json.dumps(told))
    same = told["gradient_cosine"] > 0.9999 and told["gradient_relative_error"] < 1e-3
    return 0 if same and len(steps) == 2 and not frozen else 1


if __name__ == "__main__":
    sys.exit(main())
