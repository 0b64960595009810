"""What verl computes, for the parity test of credit.

Runs verl's own ``core_algos`` on small inputs and writes inputs, outputs and versions to
``plugins/verl/tests/verl_core_algos.json``; the tests compare ours to that file, so they need no verl. All
reals are float64. Needs an environment with ``verl==0.9.1`` (see ``docs/contributing/credit.md``)::

    python bench/verl_core_algos.py
"""

from __future__ import annotations

import importlib.metadata
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo import core_algos

OUT = Path(__file__).resolve().parents[1] / "plugins" / "verl" / "tests" / "verl_core_algos.json"
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
SCALE = 7
"""``loss_scale_factor`` of the mode ``seq-mean-token-sum-norm``."""
CLIP = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}


class Config(SimpleNamespace):
    """The part of verl's actor configuration that the loss reads."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def batch(seed: int, groups: list[int]) -> dict[str, Any]:
    """Random lengths, rewards and log-probabilities for groups of the given sizes."""
    draw = random.Random(seed)
    index = [f"g{i}" for i, size in enumerate(groups) for _ in range(size)]
    lengths = [draw.randint(1, 9) for _ in index]
    logp = [[draw.uniform(-3.0, -0.01) for _ in range(n)] for n in lengths]
    return {
        "index": index,
        "lengths": lengths,
        "rewards": [draw.choice([0.0, 1.0, round(draw.gauss(0, 1), 3)]) for _ in index],
        "old_logprobs": logp,
        "logprobs": [[p + draw.gauss(0, 0.4) for p in row] for row in logp],
    }


def padded(rows: list[list[float]], width: int) -> torch.Tensor:
    """Lists of different lengths as one tensor, padded with 0."""
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows], dtype=torch.float64)


def estimate(case: dict[str, Any]) -> dict[str, list[float | None]]:
    """verl's advantage of each sequence, by estimator."""
    width = max(case["lengths"])
    mask = padded([[1.0] * n for n in case["lengths"]], width)
    rewards = padded(
        [[0.0] * (n - 1) + [r] for n, r in zip(case["lengths"], case["rewards"], strict=True)], width
    )
    index = np.array(case["index"], dtype=object)
    grpo = core_algos.compute_grpo_outcome_advantage
    found = {
        "grpo_std": grpo(rewards.clone(), mask, index, norm_adv_by_std_in_grpo=True)[0],
        "grpo_no_std": grpo(rewards.clone(), mask, index, norm_adv_by_std_in_grpo=False)[0],
        "rloo": core_algos.compute_rloo_outcome_advantage(rewards.clone(), mask, index)[0],
    }
    out: dict[str, list[float | None]] = {
        name: advantages[:, 0].tolist() for name, advantages in found.items()
    }
    for by_std in (True, False):
        out["passk_std" if by_std else "passk_no_std"] = pass_at_k(case, rewards, mask, by_std)
    return out


def pass_at_k(
    case: dict[str, Any], rewards: torch.Tensor, mask: torch.Tensor, by_std: bool
) -> list[float | None]:
    """verl's ``grpo_passk``, which refuses a group of one: ``None`` there."""
    kept = [place for place, group in enumerate(case["index"]) if case["index"].count(group) > 1]
    index = np.array([case["index"][place] for place in kept], dtype=object)
    config = Config(norm_adv_by_std_in_grpo=by_std)
    estimator = core_algos.compute_grpo_passk_outcome_advantage
    advantages = estimator(rewards[kept].clone(), mask[kept], index, config=config)[0]
    out: list[float | None] = [None] * len(case["index"])
    for place, row in zip(kept, advantages, strict=True):
        out[place] = row[0].item()
    return out


def losses(case: dict[str, Any], advantages: list[float | None]) -> dict[str, dict[str, Any]]:
    """verl's clipped loss in each aggregation mode, and its gradient by the new log-probabilities."""
    width = max(case["lengths"])
    mask = padded([[1.0] * n for n in case["lengths"]], width)
    old = padded(case["old_logprobs"], width)
    per_token = torch.tensor(advantages, dtype=torch.float64)[:, None] * mask
    out: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        new = padded(case["logprobs"], width).requires_grad_()
        scale = {"loss_scale_factor": SCALE} if mode.endswith("-norm") else {}
        config = Config(**CLIP, global_batch_info=scale)
        loss, _ = core_algos.compute_policy_loss_vanilla(old, new, per_token, mask, mode, config)
        loss.backward()
        assert new.grad is not None
        grads = [row[:n].tolist() for row, n in zip(new.grad, case["lengths"], strict=True)]
        out[mode] = {"loss": loss.item(), "grad": grads}
    return out


def main() -> None:
    """Write the file."""
    torch.set_num_threads(1)
    cases = []
    for seed, groups in enumerate([[4, 4], [2, 3, 5], [8], [3, 1, 2]]):
        case = batch(seed, groups)
        if seed == 1:
            case["rewards"][:2] = [1.0, 1.0]  # a group without spread
        case["advantages"] = estimate(case)
        case["losses"] = losses(case, case["advantages"]["grpo_std"])
        cases.append(case)
    found = {
        "versions": {name: importlib.metadata.version(name) for name in ("verl", "torch", "numpy")},
        "clip": CLIP,
        "loss_scale_factor": SCALE,
        "cases": cases,
    }
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"file": OUT.name, "cases": len(cases), **found["versions"]}))


if __name__ == "__main__":
    main()
