"""What the local driver launches, copies and waits for on a device, counted on the pretend one: no card is
needed, and no second is claimed.

Run ``python -m bench.gpu.launches`` (``make bench-launches``); the last line is one JSON object:

- ``decode_launches``: launches of a decode step of 8 conversations, of which ``graphs`` replay a captured
  graph; it stands for ``graph_nodes`` launches on the device itself, which the host has no part in.
- ``waits_per_token``: how often a decode step of one conversation makes the host wait; ``waits_of_choices``,
  with ``top_p`` and ``top_logprobs`` for each of 8.
- ``update_launches_per_1k_tokens``: of an update of 64 rows in 8 groups that share prompts (200 and 50
  tokens), by the tokens that the rows have; ``padded``: where nothing is shared.
- ``before``: the same when they were first counted, from ``bench/results``.
- ``device``: ``pretend``.

The network has the 28 layers of Qwen3-0.6B and tiny widths: what is launched depends on layers, not on
widths. An operator that reaches the device is a launch. CUDA has a few fused ones that the pretend device
composes of several: AdamW above all (some 2,500 launches of an update), and attention over padded rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from agentlightning.types import Recipe
from agl_local.generation.engine import Engine, Request
from agl_local.network.sampling import Sampling
from agl_local.training.update import Updater
from bench.gpu import pretend
from bench.gpu.loads import network, policy, prompts, rows

RESULT = Path(__file__).resolve().parents[1] / "results" / "launches.json"
SHAPE, PROMPT, FEW, MANY = "deep", 40, 4, 20
GROUPS, SAMPLES, ANSWER = 8, 8, 50


def decode(conversations: int, **sampling: Any) -> dict[str, float]:
    """Counts of one decode step: what an answer of ``MANY`` tokens takes beyond one of ``FEW``, by their
    steps.
    """
    model = network(SHAPE, "pretend")
    found = {}
    with Engine(policy(model), slots=8, max_len=128) as engine:
        for new in (MANY, FEW, MANY):  # the first to warm up: graphs are captured at their second use
            asked = prompts(model.config.vocab_size, conversations, PROMPT, seed=new)
            with pretend.counted() as counts:
                wanted = [
                    Request(prompt, Sampling(max_tokens=new, seed=i, ignore_eos=True, **sampling))
                    for i, prompt in enumerate(asked)
                ]
                engine.pause().result(60)
                answers = [engine.submit(request) for request in wanted]
                engine.resume()
                for answer in answers:
                    answer.result(120)
            found[new] = counts
    return {name: (found[MANY][name] - found[FEW][name]) / (MANY - FEW) for name in pretend.COUNTS}


def update(share: bool) -> dict[str, float]:
    """Counts of one update of :data:`GROUPS` groups, and the ``positions`` that were computed."""
    model = network(SHAPE, "pretend")
    updater = Updater(model, Recipe(name="bench"), lr=0.0, micro_tokens=8192, share=share)
    batch = rows(model.config.vocab_size, GROUPS, SAMPLES, 200, ANSWER)
    with pretend.counted() as counts:
        metrics = updater.update(batch)
    return {**counts, "positions": metrics["tokens_computed"]}


def measure() -> dict[str, Any]:
    """All figures but ``before``."""
    torch.set_num_threads(1)
    one, eight, choices = decode(1), decode(8), decode(8, top_p=0.9, top_logprobs=3)
    shared, padded = update(share=True), update(share=False)
    thousands = GROUPS * SAMPLES * (200 + ANSWER - 1) / 1000
    return {
        "decode_launches": eight["launches"],
        "graphs": eight["graphs"],
        "graph_nodes": eight["nodes"],
        "copies_per_step": eight["h2d"] + eight["d2h"],
        "waits_per_token": one["waits"],
        "waits_of_choices": choices["waits"],
        "launches_of_choices": choices["launches"],
        "update_launches_per_1k_tokens": round(shared["launches"] / thousands),
        "update_launches_per_1k_tokens_padded": round(padded["launches"] / thousands),
        "update_waits": shared["waits"],
        "update_positions": shared["positions"],
        "update_positions_padded": padded["positions"],
    }


def main() -> None:
    pretend.register()
    found = measure()
    kept = json.loads(RESULT.read_text(encoding="utf-8"))["result"] if RESULT.exists() else {}
    print(json.dumps({**found, "before": kept.get("before", found), "device": "pretend"}))


if __name__ == "__main__":
    main()
