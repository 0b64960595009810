"""The same rows through three drivers, local, tinker on our own server and verl: are gradients equal?

    python bench/tinker/parity.py [--recipes grpo reinforce gspo kl]
    (in the environment `tinker`, with a second one `verl`: `make test-tinker-parity`)

Rollouts of the calc_x agent are collected once, by the local engine, and credited by each recipe. verl trains
LoRA on their rows for two optimizer steps; its worker tells the matrices A and B before each, and their
gradients before they are clipped. Then agl-local and the driver ``tinker`` are given the same matrices, and
take the same step. In the first step B is 0, so A has no gradient; in the second it has one. The server is a
process of its own and is asked by the official client alone; the gradient is read from what it saves: after
one step of Adam its first moment is ``(1 - beta1)`` times the gradient. The API trains no whole weights:
``bench/verl_parity/run.py`` compares these between agl-local and verl. The last line is one JSON object:
relative errors, the largest of both steps; exit status 1 if one is above 1e-4.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "verl_parity"))

import run
from learning import own
from lora import found, matrices
from run import POLICY, ROOT, Tensors, apart

from agentlightning import GRPO
from agentlightning.credit.assign import assign
from agentlightning.types import Batch, Recipe
from agl_local.network.lora import Lora, adapt, adapted, starting_point
from agl_local.policy.folder import load_policy
from agl_local.training.batch import trained_positions
from agl_local.training.update import Updater
from agl_tinker.client import Client, done
from agl_tinker.options import Options
from agl_tinker.server.adapter import ALPHA, Adapter, LoraConfig
from agl_tinker.server.models import read_state, saved_at, write_state
from agl_tinker.update import RemoteUpdater

RANK = 8
LIMIT = 1e-4
BETA = 0.5
"""Decay of Adam's first moment on the server: half of the moment after one step is the gradient."""
OWN: dict[str, Any] = {"correction": None, "epochs": 2}
"""Without a correction the second step remembers nothing of the first but the weights."""
RECIPES: dict[str, Recipe] = {
    "grpo": GRPO(name="grpo", **OWN),
    "gspo": GRPO(name="gspo", ratio_level="sequence", clip_low=3e-4, clip_high=4e-4, **OWN),
    "kl": GRPO(name="kl", kl=0.5, **OWN),
    "reinforce": GRPO(name="reinforce", loss="reinforce", **OWN),
}
Given = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Layer → A and B."""


def fill(network: Any, given: Given) -> None:
    """Set the matrices of an adapted network."""
    layers = adapted(network)
    if layers.keys() != given.keys():
        raise SystemExit(f"other layers: {sorted(layers.keys() ^ given.keys())}")
    with torch.no_grad():
        for name, layer in layers.items():
            layer.lora_A.copy_(given[name][0])
            layer.lora_B.copy_(given[name][1])


def locally(recipe: Recipe, batch: Batch, given: Given) -> Tensors:
    """agl-local's gradient of every A and B."""
    model = load_policy(POLICY).model
    adapt(model, Lora(rank=RANK, alpha=ALPHA), 0)
    start = starting_point(model)
    fill(model, given)
    grads: Tensors = {}

    def take(*_: Any) -> None:
        for name, layer in adapted(model).items():
            for kind in "AB":
                grad = getattr(layer, f"lora_{kind}").grad
                grads[f"{name}.{kind}"] = grad.clone()

    updater = Updater(model, recipe, lr=run.TINY, clip_norm=run.NO_CLIP, share=False, reference=start)
    updater.optimizer.register_step_pre_hook(take)
    updater.update(list(batch.rows), 0)
    return grads


async def over_the_api(recipe: Recipe, batch: Batch, given: Given, url: str, state: Path) -> Tensors:
    """The same of the server at ``url``, which keeps what it saves in ``state``."""
    options = Options(
        base_model="calc_x", base_url=url, rank=RANK, lr=run.TINY, betas=(BETA, 0.9), max_grad_norm=None
    )
    client = Client(options)
    await client.open()
    try:
        await client.create(seed=0)
        start = await client.save("start")
        base = load_policy(POLICY)
        adapter = Adapter(base, LoraConfig(rank=RANK))
        file = saved_at(state, start)
        fill(adapter.network, given)
        write_state(file, {**read_state(file), **adapter.state(optimizer=False)})
        await client.restore(start, optimizer=False)
        sampler = await client.base_sampler()

        async def reference(rows: Any) -> torch.Tensor:
            asked = [client.prompt_logprobs(sampler, row.token_ids) for row in rows]
            known = [await done(one) for one in asked]
            parts = [
                one[t - len(row.token_ids)]
                for row, one in zip(rows, known, strict=True)
                for t in trained_positions(row)
            ]
            return torch.tensor(parts, dtype=torch.float64)

        updater = RemoteUpdater(
            client, recipe, options, vocab_size=base.config.vocab_size, seed=0, reference=reference
        )
        _, after = await updater.update(list(batch.rows), 0, client.sampler)
        await done(after)
        adapter.load(read_state(saved_at(state, await client.save("after"))), optimizer=True)
    finally:
        await client.close()
    moments = adapter._optimizer.state
    return {
        f"{name}.{kind}": moments[getattr(layer, f"lora_{kind}")]["exp_avg"] / (1 - BETA)
        for name, layer in adapted(adapter.network).items()
        for kind in "AB"
    }


def compare(recipe: Recipe, python: str, records: list[Any], folder: Path, url: str, state: Path) -> Any:
    """Relative errors of one recipe."""
    batch = assign(records, recipe, version=0)
    once = msgspec.structs.replace(recipe, epochs=1)
    written, _, _ = asyncio.run(run.through_verl(python, recipe, batch, folder / "lora", 1))
    if len(written) != 2:
        raise SystemExit(f"{recipe.name}: verl made {len(written)} optimizer steps instead of 2")
    errors: dict[str, list[float]] = {"local_verl": [], "local_tinker": [], "tinker_verl": []}
    norms = []
    for step in written:
        given, verl = matrices(step, "before"), found(step)
        ours = locally(once, batch, given)
        theirs = asyncio.run(over_the_api(once, batch, given, url, state))
        errors["local_verl"].append(apart(ours, verl)["relative_error"])
        errors["local_tinker"].append(apart(ours, theirs)["relative_error"])
        errors["tinker_verl"].append(apart(theirs, verl)["relative_error"])
        norms.append(apart(ours, verl)["norm"])
    told = {
        "rows": len(batch.rows),
        "steps": len(written),
        "relative_error": {name: max(steps) for name, steps in errors.items()},
        "gradient_norms": norms,
    }
    print(json.dumps({recipe.name: told}), file=sys.stderr)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description="local, tinker and verl on the same rows.")
    parser.add_argument("--recipes", nargs="+", choices=[*RECIPES], default=["grpo", "reinforce"])
    asked = parser.parse_args()
    run.MORE.update(lora={"rank": RANK, "alpha": int(ALPHA)}, start_seconds=3600)
    os.environ |= {"TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0"}
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    with tempfile.TemporaryDirectory(prefix="tinker-parity-") as scratch:
        folder = Path(scratch)
        records = asyncio.run(run.rollouts(folder / "collect"))
        with own(folder) as (url, _, _, _):
            every = {
                name: compare(RECIPES[name], python, records, folder / name, url, folder / "state")
                for name in asked.recipes
            }
    largest = max(error for told in every.values() for error in told["relative_error"].values())
    print(json.dumps({"recipes": every, "largest_relative_error": largest, "limit": LIMIT}))
    return 0 if largest <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
