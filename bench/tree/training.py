"""Tokens computed and seconds of an update over groups whose rows begin alike: sharing none, or their trie.

``router``: 16 prompts of 60 to 80 tokens behind a common one of 30, 8 guided answers each. ``few_shot``: the
same behind 300 tokens more. Both ways must find the same gradient norm. A process keeps memory that it has
freed: for the peak of one way, measure it alone.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

from agentlightning.types import Recipe, Row, Segment
from agl_local.network.model import LanguageModel
from agl_local.training.update import Updater

GROUPS, SAMPLES, CHOICES = 16, 8, 4
HEADERS = {"router": 30, "few_shot": 330}


def router_rows(vocab: int, header: int) -> list[Row]:
    """One of four answers of 3 to 10 tokens was chosen by each sample."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(count)]

    rows, common = [], ids(header)
    for group in range(GROUPS):
        prompt = common + ids(rng.randint(30, 50))
        choices = [ids(rng.randint(3, 10)) for _ in range(CHOICES)]
        for sample in range(SAMPLES):
            answer, start = rng.choice(choices), len(prompt)
            mask = [0] * start + [1] * len(answer)
            name, advantage = f"{group}-{sample}", rng.choice((-1.0, 1.0))
            rows.append(
                Row(
                    row_id=name,
                    rollout_id=name,
                    policy="bench",
                    token_ids=prompt + answer,
                    mask=mask,
                    advantages=[advantage * m for m in mask],
                    logprobs=[-1.0 * m for m in mask],
                    weights=[m / len(answer) / GROUPS / SAMPLES for m in mask],
                    versions=[m - 1 for m in mask],
                    segments=[Segment(name, start, len(mask), advantage)],
                    allowed={start: choices},
                )
            )
    return rows


def measure(
    model: LanguageModel, rows: list[Row], modes: list[str], rounds: int, **options: Any
) -> dict[str, Any]:
    """``modes``: ``none``, ``trie``, and ``trie_recomputed`` with activation checkpointing."""
    out: dict[str, Any] = {}
    norms: list[float] = []
    for mode in modes:
        # A step of size 0: all modes see the same weights, and the optimizer's memory and time count.
        updater = Updater(
            model,
            Recipe(name="bench"),
            lr=0.0,
            share=mode != "none",
            recompute=mode.endswith("recomputed"),
            **options,
        )
        updater.update(rows[:2])
        reset_peak()
        taken, cpu = [], time.process_time()
        for _ in range(rounds):
            began = time.perf_counter()
            metrics = updater.update(rows)
            taken.append(time.perf_counter() - began)
        out[f"cpu_seconds_{mode}"] = round((time.process_time() - cpu) / rounds, 4)
        norms.append(metrics["grad_norm"])
        out[f"seconds_{mode}"] = round(statistics.median(taken), 4)
        out[f"tokens_computed_{mode}"] = int(metrics["tokens_computed"])
        out[f"peak_mb_{mode}"] = peak_mb()
        out["tokens_read"] = int(metrics["tokens_read"])
    if max(norms) / min(norms) - 1 > 1e-4:
        raise RuntimeError(f"the gradient depends on what is shared: {dict(zip(modes, norms, strict=True))}")
    if {"none", "trie"} <= set(modes):
        fewer = out["tokens_computed_none"] / out["tokens_computed_trie"]
        out["times_fewer_tokens"] = round(fewer, 2)
        out["times_faster"] = round(out["seconds_none"] / out["seconds_trie"], 2)
    return out


def reset_peak() -> None:
    """Let the kernel measure the largest resident memory anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_mb() -> int:
    """Largest resident memory of this process since ``reset_peak``, in 10⁶ bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return round(kib * 1024 / 1e6)
