"""The same rollouts through both drivers: advantages, gradients, and reward curves.

    python bench/verl_parity/run.py [--curves]       (needs the environment `verl`, made if it is not there)

Rollouts of the calc_x agent are collected once, with the local engine, and credited once. Their rows go
through agl-local's updater and, in a run of its own, through verl's trainer, whose worker tells the gradient
before it clips and the advantages that its loss got. ``--curves`` also trains both for 20 steps with seeds 1,
2 and 3. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from agentlightning.cli.run import trainer_from
from agentlightning.config import load_config
from agentlightning.specs import Job
from agentlightning.types import Batch, Evaluation, Recipe, StepReport
from agl_local.driver import LocalDriver
from agl_local.policy import load_policy
from agl_local.update import Updater
from agl_verl.driver import VerlDriver

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "examples" / "calc_x" / "policy"
CONFIG = ROOT / "examples" / "calc_x" / "cpu.yaml"
SEEDS = (1, 2, 3)
CURVE_STEPS = 20


class Recorded(Job):
    """A job of one step, whose rows are there already."""

    def __init__(self, recipe: Recipe, batch: Batch, folder: Path) -> None:
        self.run_id, self.recipe, self.policy = "parity", recipe, "policy"
        self.steps, self.first_step, self.seed, self.folder = 1, 0, 1, folder
        self.batch = batch
        self.reports: list[StepReport] = []

    async def collect(self, step: int) -> Batch:
        return self.batch

    async def report(self, report: StepReport) -> None:
        self.reports.append(report)

    async def evaluate(self, step: int) -> Evaluation | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    async def saved(self, folder: Path, step: int) -> None: ...


class Collected(Exception):
    """The rows of the first step are there, and that was all we wanted."""


async def rollouts(folder: Path) -> tuple[Recipe, Batch]:
    """The rows of one step of the demo: real rollouts of the AutoGen agent, credited by core."""
    found: list[Batch] = []

    async def keep(self: LocalDriver, job: Job) -> None:
        found.append(await job.collect(0))
        raise Collected

    run, LocalDriver.run = LocalDriver.run, keep  # type: ignore[method-assign]
    config = load_config(
        CONFIG, {"output": str(folder), "environment.headroom": {}, "environment.val.limit": 8}
    )
    trainer, agent, train, val = trainer_from(config)
    try:
        await trainer.afit(agent, train, val)
    except Collected:
        pass
    finally:
        LocalDriver.run = run  # type: ignore[method-assign]
    return trainer.recipe, found[0]


def local_gradient(recipe: Recipe, batch: Batch) -> dict[str, torch.Tensor]:
    """Of agl-local's loss over the rows, before clipping."""
    policy = load_policy(POLICY)
    updater = Updater(policy.model, recipe, lr=0.0, clip_norm=None, share=False)
    found: dict[str, torch.Tensor] = {}

    def take(*_: Any) -> None:
        found.update((n, p.grad.clone()) for n, p in policy.model.named_parameters() if p.grad is not None)

    updater.optimizer.register_step_pre_hook(take)
    updater.update(list(batch.rows), 0)
    return found


async def through_verl(python: str, recipe: Recipe, batch: Batch, folder: Path) -> dict[str, torch.Tensor]:
    """What the tap on verl's worker wrote for the same rows."""
    os.environ["AGL_VERL_TAP"] = str(folder / "tap")
    driver = VerlDriver(
        POLICY, "policy", recipe, seed=1, options={"python": python, "engine_threads": 1, "max_len": 512}
    )
    try:
        await driver.start()
        await driver.run(Recorded(recipe, batch, folder))
    finally:
        await driver.close()
        del os.environ["AGL_VERL_TAP"]
    (written,) = (folder / "tap").glob("*.safetensors")
    return load_file(written)


def compare(
    batch: Batch, ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]
) -> dict[str, float | int]:
    """Largest difference of advantages (weights included), and how far apart the gradients are."""
    carried = sorted(
        w * a
        for row in batch.rows
        for w, a, m in zip(row.weights, row.advantages, row.mask, strict=True)
        if m and row.trained_tokens
    )
    seen = sorted(theirs["advantages"][theirs["mask"].bool()].double().tolist())
    grads = {n.removeprefix("grad/"): g for n, g in theirs.items() if n.startswith("grad/")}
    if set(grads) != set(ours):
        raise SystemExit(f"other parameters: {sorted(set(grads) ^ set(ours))}")
    a = torch.cat([ours[n].double().flatten() for n in sorted(ours)])
    b = torch.cat([grads[n].double().flatten() for n in sorted(ours)])
    return {
        "rows": len(batch.rows),
        "tokens": len(carried),
        "tokens_seen": len(seen),
        "advantage_difference": max(
            (abs(x - y) for x, y in zip(carried, seen, strict=True)), default=math.nan
        ),
        "gradient_cosine": float(torch.dot(a, b) / (a.norm() * b.norm())),
        "gradient_relative_error": float((a - b).norm() / a.norm()),
        "gradient_norm": float(a.norm()),
    }


def curve(driver: str, seed: int, python: str, folder: Path) -> list[float]:
    """Training rewards of a run of :data:`CURVE_STEPS` steps."""
    settings = {"training.seed": seed, "training.steps": CURVE_STEPS, "environment.headroom": "{}",
                "environment.val.limit": 8, "output": folder}  # fmt: skip
    if driver == "verl":
        settings["backend.options.python"] = python
    config = ROOT / "examples" / "calc_x" / ("verl.yaml" if driver == "verl" else "cpu.yaml")
    command = [sys.executable, "-m", "_agl_main", "train", "--config", str(config)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=ROOT)
    (run,) = folder.glob(f"*-s{seed}")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["metrics"]["reward_mean"] for line in lines]


def band(curves: list[list[float]]) -> list[tuple[float, float]]:
    """Mean and half-width of the 95 % interval over the seeds (Student's t), step by step."""
    t = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}[len(curves)]
    return [
        (statistics.fmean(at), t * statistics.stdev(at) / math.sqrt(len(at)))
        for at in zip(*curves, strict=True)
    ]


def overlap(ours: list[list[float]], theirs: list[list[float]]) -> dict[str, Any]:
    """At how many steps each mean lies within the other's band; both curves."""
    a, b = band(ours), band(theirs)
    inside = sum(abs(x - y) <= max(u, v) for (x, u), (y, v) in zip(a, b, strict=True))
    return {
        "steps": len(a),
        "steps_within_the_other_band": inside,
        "local": [round(x, 4) for x, _ in a],
        "verl": [round(x, 4) for x, _ in b],
        "last_five": [round(statistics.fmean(x for x, _ in one[-5:]), 4) for one in (a, b)],
    }


def main() -> int:
    """Compare; print; exit status 1 where they differ."""
    parser = argparse.ArgumentParser(description="verl and agl-local on the same rows.")
    parser.add_argument("--curves", action="store_true", help="also 20 steps of training, three seeds each")
    asked = parser.parse_args()
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    with tempfile.TemporaryDirectory(prefix="verl-parity-") as scratch:
        folder = Path(scratch)
        recipe, batch = asyncio.run(rollouts(folder / "collect"))
        ours = local_gradient(recipe, batch)
        theirs = asyncio.run(through_verl(python, recipe, batch, folder))
        told: dict[str, Any] = dict(compare(batch, ours, theirs))
        if asked.curves:
            runs = {d: [curve(d, s, python, folder / d) for s in SEEDS] for d in ("local", "verl")}
            told["curves"] = overlap(runs["local"], runs["verl"])
    print(json.dumps(told))
    same = (
        told["advantage_difference"] <= 1e-6
        and told["gradient_cosine"] > 0.9999
        and told["gradient_relative_error"] < 1e-3
    )
    if asked.curves:
        same = same and told["curves"]["steps_within_the_other_band"] >= 0.9 * CURVE_STEPS
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
