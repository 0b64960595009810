"""A few updates in a process of its own; prints a digest of the parameters and the metrics of each step.

``python -m plugins.local.update_script FIRST STOP ORDER [FOLDER]``: steps FIRST to STOP of every run in
``RUNS``; rows of a step come in ORDER (a seed); with FOLDER the state is loaded from there before a first
step above 0, and saved there at the end.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch

from agentlightning.types import Recipe, Row
from agl_local.policy.checkpoint import latest, load_checkpoint, save_checkpoint
from agl_local.policy.folder import Policy, fingerprint, init_model
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import make_row, tiny_config, tiny_tokenizer

ONE = Recipe(name="one")
ALL = Recipe(name="all", epochs=2, minibatches=2, kl=0.1, entropy=0.01, importance_cap=2.0)
RUNS = {"one step": (ONE, 1), "all of it": (ALL, 1), "two threads": (ONE, 2)}


def rows_of(policy: Policy, step: int) -> list[Row]:
    """Groups with a common prompt, ties, rows without a gradient, guided and stale ones."""
    rng = random.Random(step)
    rows = []
    for group in range(3):
        prompt = [rng.randrange(1, 250) for _ in range(rng.randrange(10, 80))]
        for i in range(6):
            answer = [rng.randrange(1, 250) for _ in range(rng.randrange(3, 20))] if i else [7, 8, 9]
            ids, start = [*prompt, *answer], len(prompt)
            advantage = 0.0 if i == 2 else rng.gauss(0.0, 1.0) if i else 1.0
            rows.append(
                make_row(
                    policy.model,  # type: ignore[arg-type]
                    ids,
                    [(start, len(ids))],
                    [advantage],
                    name=f"{step}-{group}-{i}",
                    version=step - (i == 3),
                    temperature=0.8 if group == 2 else 1.0,
                    allowed={start: [[7, 8, 9], [7, 10], [11]]} if not i else None,
                    shift=0.01 * i,
                )
            )
    return rows


def run(recipe: Recipe, first: int, stop: int, threads: int, order: int, folder: Path | None) -> list[object]:
    config = tiny_config(hidden=64)
    policy = Policy(init_model(config, 1, std=0.1).eval(), tiny_tokenizer(), config)
    updater = Updater(policy.model, recipe, lr=1e-2, threads=threads, micro_tokens=600, seed=3)
    if first and folder is not None:
        found = latest(folder)
        assert found is not None and found.step == first
        updater.load_state_dict(load_checkpoint(found, policy))
    out: list[object] = []
    for step in range(first, stop):
        rows = rows_of(policy, step)
        random.Random(order).shuffle(rows)
        metrics = updater.update(rows, step)
        del metrics["seconds"]
        out.append([fingerprint(policy.model), metrics])
    if folder is not None:
        state = updater.state_dict()
        save_checkpoint(folder, step=stop, version=stop, policy=policy, trainer=state)
    return out


def main(first: str, stop: str, order: str, folder: str = "") -> None:
    torch.use_deterministic_algorithms(True)
    found = {}
    for name, (recipe, threads) in RUNS.items():
        torch.set_num_threads(threads)
        place = Path(folder) / name if folder else None
        found[name] = run(recipe, int(first), int(stop), threads, int(order), place)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
