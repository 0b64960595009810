"""Seconds of the local driver's update phase: 64 rows of 140 tokens on the demos' tiny policy.

Run ``python bench/local_update.py [--threads 1] [--rounds 7]``; prints one JSON object, in which
``tree_training`` says what is saved by computing equal beginnings once (``tree/training.py``). With
``--policy FOLDER`` that is all, of that policy; ``--modes trie`` leaves out what takes long.

The rows are those of calc_x in shape: 8 prompts x 8 samples, two calls of one conversation merged into a row,
about a quarter of the tokens trained. Beside it, in the same run: transformers' own Qwen2 over the same rows
in one padded batch, the same loss written out over all positions, AdamW and clipping. Rounds alternate;
figures are medians. ``seconds_all_live`` is without rows of advantage 0; ``seconds`` has a quarter of the
groups at equal reward, as the demo has. Both trainers start from the same weights and must agree on the
gradient norm.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from local_engine import VOCAB, tiny_policy
from tree import training as tree_training

from agentlightning.types import Recipe, Row
from agl_local.network.model import LanguageModel
from agl_local.policy.fetch import fetch
from agl_local.policy.folder import load_policy, save_policy
from agl_local.training.freeze import frozen
from agl_local.training.update import Updater

PROMPTS, SAMPLES = 8, 8


def make_rows(idle_groups: int) -> list[Row]:
    """Prompt of about 70 tokens, answer of about 22, a tool's result, a second answer of about 12."""
    rng = random.Random(0)
    rows = []
    for group in range(PROMPTS):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(60, 85))]
        for sample in range(SAMPLES):
            first, between, second = rng.randint(17, 27), rng.randint(24, 40), rng.randint(8, 16)
            ids = prompt + [rng.randrange(VOCAB) for _ in range(first + between + second)]
            a, b = len(prompt), len(prompt) + first + between
            mask = [int(a <= t < a + first or t >= b) for t in range(len(ids))]
            advantage = 0.0 if group < idle_groups else float(rng.choice((-1.0, 1.0)))
            weight = 1 / (PROMPTS * SAMPLES * sum(mask))
            rows.append(
                Row(
                    row_id=f"{group}-{sample}",
                    rollout_id=f"{group}-{sample}",
                    policy="bench",
                    token_ids=ids,
                    mask=mask,
                    advantages=[advantage * m for m in mask],
                    logprobs=[-6.0 * m for m in mask],
                    weights=[weight * m for m in mask],
                    versions=[m - 1 for m in mask],
                )
            )
    return rows


class Plain:
    """The update as one would write it with transformers: pad everything, all logits, log_softmax, gather."""

    def __init__(self, folder: Path, lr: float) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0)

    def update(self, rows: list[Row]) -> float:
        width = max(len(row.token_ids) for row in rows)

        def padded(name: str) -> torch.Tensor:
            return torch.tensor(
                [list(getattr(row, name)) + [0] * (width - len(row.token_ids)) for row in rows]
            )

        ids, mask = padded("token_ids"), padded("mask")
        attention = torch.tensor([[int(t < len(row.token_ids)) for t in range(width)] for row in rows])
        logits = self.model(ids, attention_mask=attention, use_cache=False).logits[:, :-1]
        logp = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
        ratio = ((logp - padded("logprobs")[:, 1:]) * mask[:, 1:]).exp()
        advantages = padded("advantages")[:, 1:]
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -(padded("weights")[:, 1:] * surrogate).sum()
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def timed(update: object, rows: list[Row]) -> tuple[float, float]:
    """(seconds, gradient norm) of one update."""
    began = time.perf_counter()
    result = update(rows)  # type: ignore[operator]
    seconds = time.perf_counter() - began
    return seconds, result if isinstance(result, float) else result["grad_norm"]


def tree(model: LanguageModel, args: argparse.Namespace) -> dict[str, Any]:
    """What ``tree_training.measure`` finds for each kind of rows."""
    options = {"threads": args.threads, "micro_tokens": args.micro_tokens}
    return {
        kind: tree_training.measure(
            model,
            tree_training.router_rows(model.config.vocab_size, header),
            args.modes.split(","),
            args.rounds,
            **options,
        )
        for kind, header in tree_training.HEADERS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--micro-tokens", type=int, default=4096)
    parser.add_argument(
        "--policy", help="measure tree training alone, of this policy: a folder or a name, e.g. smollm2"
    )
    parser.add_argument("--modes", default="none,trie", help="of none, trie, trie_recomputed")
    parser.add_argument("--freeze", action="append", default=[], help="pattern of parameters not to train")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.policy is not None:
        model = load_policy(fetch(args.policy).path).model
        with frozen(model, args.freeze):
            print(json.dumps({"threads": args.threads, "tree_training": tree(model, args)}))
        return
    policy = tiny_policy()
    with tempfile.TemporaryDirectory() as folder:
        plain = Plain(save_policy(policy, folder), lr=1e-4)
    options = {"lr": 1e-4, "threads": args.threads, "micro_tokens": args.micro_tokens}
    live, mixed = make_rows(0), make_rows(2)
    trainers = {
        "seconds": (Updater(tiny_policy().model, Recipe(name="bench"), **options).update, mixed),
        "seconds_all_live": (Updater(tiny_policy().model, Recipe(name="bench"), **options).update, live),
        "seconds_transformers": (plain.update, live),
    }
    taken: dict[str, list[float]] = {name: [] for name in trainers}
    for round_ in range(args.rounds + 1):
        norms = {}
        for name, (update, rows) in trainers.items():
            seconds, norms[name] = timed(update, rows)
            taken[name].append(seconds)
        if round_ == 0 and abs(norms["seconds_all_live"] / norms["seconds_transformers"] - 1) > 1e-3:
            raise RuntimeError(f"the two trainers do not compute the same gradient: {norms}")
    medians = {name: statistics.median(values[1:]) for name, values in taken.items()}
    print(
        json.dumps(
            {
                "rows": len(live),
                "tokens": sum(len(row.token_ids) for row in live),
                "tokens_trained": sum(row.trained_tokens for row in live),
                "threads": args.threads,
                **{name: round(value, 4) for name, value in medians.items()},
                "times_faster": round(medians["seconds_transformers"] / medians["seconds_all_live"], 2),
                "tree_training": tree(tiny_policy().model, args),
            }
        )
    )


if __name__ == "__main__":
    main()
