"""The same rollouts through both drivers: advantages, gradients, and reward curves.

    python bench/verl_parity/run.py [--recipe all] [--ranks 1] [--nodes 1] [--curves]

Rollouts of the calc_x agent are collected once, with the local engine, and credited by each recipe. Their
rows go through agl-local's updater and, in a run of its own, through verl's trainer, whose worker tells the
gradient before it clips and the advantages that its loss got. Recipes of two epochs are compared at both
optimizer steps: the first moves the weights, so at the second ratios and KL are not trivial. Recipes of
several mini-batches take all of their steps, some of them over rows without an advantage, which both leave
out; then the weights are compared too. ``ppo``, which
the local driver does not run, is compared with its formulas (``critic.py``). The calls of :data:`ALTERED` are
changed, so that importance weights act (``altered.py``): half of them a version behind, or sampled at another
temperature, or all by an engine whose probabilities differ from the trainer's. The recipes of ``taught.py``
have a teacher's advantages, token by token. ``--curves`` also trains both for 20 steps with seeds 1, 2 and 3.
The last line is one JSON object; comparisons are kept in ``bench/results/verl_parity.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altered
import critic
import taught
import torch
from curves import CURVE_STEPS, SEEDS, curve, overlap
from safetensors.torch import load_file

from agentlightning import GRPO, RLOO
from agentlightning.credit.assign import assign
from agentlightning.specs import Job
from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config
from agentlightning.types import Batch, Correction, Evaluation, Progress, Recipe, Record, StepReport
from agentlightning.types.sections import TrainingSection
from agentlightning.types.work import PolicyFolder
from agl_distill.names import RULE
from agl_distill.plugin import teacher
from agl_local.driver import LocalDriver
from agl_local.policy.folder import load_policy
from agl_local.training.update import Updater
from agl_verl.driver import VerlDriver
from agl_verl.ppo import PPO, returns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ray_nodes import cluster

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "examples" / "calc_x" / "policy"
CONFIG = ROOT / "examples" / "calc_x" / "cpu.yaml"
SEED = 1
"""Of the mini-batches."""
NO_CLIP = 1e9
"""A bound that no gradient's norm reaches."""
WEIGHED = ("correction/", "off_policy/")
"""Metrics about importance weights that are reported."""
Tensors = dict[str, torch.Tensor]
MORE: dict[str, Any] = {}
"""Further options of verl's driver: the cluster that it joins, LoRA."""


TINY = 1e-12
"""A learning rate that verl takes, and that moves nothing."""
RECIPES: dict[str, Callable[[], Recipe]] = {
    "grpo": GRPO,
    "rloo": RLOO,
    "dr-grpo": lambda: GRPO(name="dr-grpo", scale="none", loss_aggregation="constant", loss_divisor=64.0),
    "reinforce++": lambda: GRPO(name="reinforce++", baseline="batch", group_by=["batch"], scale="std"),
    "dapo": lambda: GRPO(name="dapo", clip_high=0.28, loss_aggregation="token", filter_zero_std_groups=True),
    "dual-clip": lambda: GRPO(name="dual-clip", clip_low=1e-4, clip_high=1e-4, clip_ratio_c=1.0001, epochs=2),
    "gspo": lambda: GRPO(name="gspo", ratio_level="sequence", clip_low=3e-4, clip_high=4e-4, epochs=2),
    "kl": lambda: GRPO(name="kl", kl=0.5, entropy=0.05, epochs=2),
    "reinforce": lambda: GRPO(name="reinforce", loss="reinforce"),
    "minibatches": lambda: GRPO(name="minibatches", minibatches=50),
    "minibatches-constant": lambda: GRPO(
        name="minibatches-constant", scale="none", loss_aggregation="constant", loss_divisor=64.0,
        minibatches=7, epochs=2,
    ),
    "stale": lambda: GRPO(name="stale", max_staleness=1, importance_cap=1.2, epochs=2),
    "correction": lambda: GRPO(name="correction", correction=Correction(threshold=0.0, cap=1.2), epochs=2),
    "masked": lambda: GRPO(
        name="masked", correction=Correction(kind="mask", level="sequence", threshold=0.0, cap=1.5), epochs=2
    ),
    "shaped": lambda: GRPO(name="shaped", off_policy_cap=1.2, epochs=2),
    "ppo": lambda: PPO(gamma=0.99, lam=0.9, epochs=2),
    **taught.RECIPES,
}  # fmt: skip
"""What is compared, by name; the settings are there to make each part of a loss act."""
ALTERED: Mapping[str, Callable[[Sequence[Record]], list[Record]]] = {
    "stale": altered.aged,
    "correction": altered.mismatched,
    "masked": altered.mismatched,
    "shaped": altered.shaped,
}
"""How the calls are changed before they are credited."""


class Recorded(Job):
    """A job of one step, whose rows are there already."""

    steps = 1

    def __init__(self, recipe: Recipe, batch: Batch, folder: Path) -> None:
        self.run_id, self.recipe, self.policy = "parity", recipe, "policy"
        self.first_step, self.seed, self.folder = 0, 1, folder
        self.batch = batch
        self.reports: list[StepReport] = []

    async def collect(self, step: int) -> Batch:
        return self.batch

    def progress(self, progress: Progress) -> None:
        pass

    async def report(self, report: StepReport) -> None:
        self.reports.append(report)

    async def evaluate(self, step: int) -> Evaluation | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    async def saved(self, folder: Path, step: int) -> None: ...


class Collected(Exception):
    """The rows of the first step are there, and that was all we wanted."""


async def rollouts(folder: Path) -> list[Record]:
    """What one step of the demo left in the store: real rollouts of the AutoGen agent."""
    found: list[Record] = []

    async def keep(self: LocalDriver, job: Any) -> None:
        batch = await job.collect(0)
        found.extend(await job.context.store.records([ledger.rollout_id for ledger in batch.ledgers]))
        raise Collected

    run, LocalDriver.run = LocalDriver.run, keep  # type: ignore[method-assign]
    config = load_config(
        CONFIG, {"output": str(folder), "environment.headroom": {}, "environment.val.limit": 8}
    )
    trainer, agent, train, val = configure(config)
    try:
        await trainer.afit(agent, train, val)
    except Collected:
        pass
    finally:
        LocalDriver.run = run  # type: ignore[method-assign]
    return found


def locally(recipe: Recipe, batch: Batch) -> tuple[list[Tensors], Tensors, dict[str, float]]:
    """Of agl-local over the rows: the gradient of its loss, before clipping, at each optimizer step; the
    weights after all of them; and its report.
    """
    policy = load_policy(POLICY)
    updater = Updater(policy.model, recipe, lr=rate(recipe), clip_norm=NO_CLIP, share=False, seed=SEED)
    found: list[Tensors] = []

    def take(*_: Any) -> None:
        grads = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
        found.append(grads)

    updater.optimizer.register_step_pre_hook(take)
    metrics = updater.update(list(batch.rows), recipe.max_staleness)
    return found, {n: p.detach() for n, p in policy.model.named_parameters()}, metrics


def rate(recipe: Recipe) -> float:
    """Learning rate: large where the weights have to move between two steps."""
    if recipe.minibatches > 1:  # of many steps: rounding grows with each, and with the rate
        return 1e-4
    return 1e-3 if recipe.epochs > 1 else TINY


async def through_verl(
    python: str, recipe: Recipe, batch: Batch, folder: Path, ranks: int
) -> tuple[list[Tensors], StepReport, Tensors]:
    """What the tap on verl's worker wrote for the same rows, the driver's report, and the weights after it.
    See :data:`MORE`.
    """
    os.environ["AGL_VERL_TAP"] = str(folder / "tap")
    options = {"python": python, "engine_threads": 1, "max_len": 512, "ranks": ranks, "lr": rate(recipe)}
    options |= {"max_grad_norm": NO_CLIP, **MORE}
    driver = VerlDriver(PolicyFolder(POLICY, options=options), recipe, TrainingSection(seed=SEED))
    job = Recorded(recipe, batch, folder)
    try:
        await driver.start()
        driver._version = recipe.max_staleness  # `altered.aged` makes rows of that age
        await driver.run(job)
        exported = await driver.export(folder / "exported")
    finally:
        await driver.close()
        del os.environ["AGL_VERL_TAP"]
    return tapped(folder / "tap", ranks), job.reports[0], load_file(exported / "model.safetensors")


def tapped(folder: Path, ranks: int) -> list[Tensors]:
    """What all ranks wrote, a step at a time."""
    steps = []
    for number in range(len(list(folder.glob("*-0.safetensors")))):
        parts = [load_file(folder / f"{number}-{rank}.safetensors") for rank in range(ranks)]
        columns = [name for name in parts[0] if not name.startswith(("grad/", "before/"))]
        shared = {name: torch.cat([part[name] for part in parts]) for name in columns}
        steps.append({**parts[0], **shared})
    return steps


def carried(batch: Batch) -> list[float]:
    """Weight × advantage of every trained token, sorted."""
    return sorted(
        w * a
        for row in batch.rows
        for w, a, m in zip(row.weights, row.advantages, row.mask, strict=True)
        if m and row.trained_tokens
    )


def apart(ours: Tensors, theirs: Tensors) -> dict[str, float]:
    """How far apart two gradients are."""
    if set(theirs) != set(ours):
        raise SystemExit(f"other parameters: {sorted(set(theirs) ^ set(ours))}")
    a = torch.cat([ours[n].double().flatten() for n in sorted(ours)])
    b = torch.cat([theirs[n].double().flatten() for n in sorted(ours)])
    return {
        "cosine": float(torch.dot(a, b) / (a.norm() * b.norm())),
        "relative_error": float((a - b).norm() / a.norm()),
        "norm": float(a.norm()),
    }


def moved(after: Tensors) -> Tensors:
    """How far a step has moved the weights of the policy."""
    before = load_file(POLICY / "model.safetensors")
    return {name: after[name].double() - tensor.double() for name, tensor in before.items()}


def compare(name: str, python: str, records: list[Record], folder: Path, ranks: int) -> dict[str, Any]:
    """One recipe through both: the advantages (weights included), and the gradient of each step."""
    recipe = RECIPES[name]()
    changed = ALTERED.get(name, list)(records)
    batch = assign(changed, recipe, version=recipe.max_staleness, rules={RULE: teacher})
    if name in taught.SETTINGS:
        batch = taught.taught(batch, recipe, taught.teacher_of(POLICY, folder / "teacher"))
    written, report, weights = asyncio.run(through_verl(python, recipe, batch, folder, ranks))
    ours, own_weights, metrics = locally(recipe, batch)
    steps = {name: (metrics[name], report.metrics[name]) for name in ("optimizer_steps", "steps_empty")}
    if any(a != b for a, b in steps.values()):
        raise SystemExit(f"{name}: agl-local and verl did not make the same steps: {steps}")
    # The tap also sees mini-batches without a gradient, of which no step is made.
    theirs = [{n[5:]: g for n, g in step.items() if n.startswith("grad/")} for step in written]
    theirs = [step for step in theirs if any(bool(g.any()) for g in step.values())]
    count = len(written) // recipe.epochs
    seen = sorted(
        x / count
        for step in written[:count]
        for x in step["advantages"][step["mask"].bool()].double().tolist()
    )
    wanted = carried(batch)
    compared = [apart(a, b) for a, b in zip(ours, theirs, strict=True)]
    told = {
        "recipe": name,
        "ranks": ranks,
        "rows": len(batch.rows),
        "tokens": len(wanted),
        "advantage_difference": max(
            (abs(x - y) for x, y in zip(wanted, seen, strict=True)), default=math.nan
        ),
        "gradient_cosine": min(step["cosine"] for step in compared),
        "gradient_relative_error": max(step["relative_error"] for step in compared),
        "gradient_relative_errors": [step["relative_error"] for step in compared],
        "gradient_norms": [step["norm"] for step in compared],
        "optimizer_steps": report.metrics["optimizer_steps"],
        "steps_empty": report.metrics["steps_empty"],
        "clip_fraction": report.metrics.get("clip_fraction"),
        "tokens_stale": report.metrics["tokens_stale"],
        "kl_reference": report.metrics.get("kl_reference"),
        "logprob_gap_max": report.metrics["logprob_gap_max"],
        **{key: value for key, value in report.metrics.items() if key.startswith(WEIGHED)},
    }
    if rate(recipe) > TINY:
        told["weights"] = apart(moved(own_weights), moved(weights))
    print(json.dumps(told), file=sys.stderr)
    return told


def by_hand(name: str, python: str, records: list[Record], folder: Path, ranks: int) -> dict[str, Any]:
    """A recipe with a critic through verl, and its numbers made again."""
    recipe = RECIPES[name]()
    batch = critic.joined(assign(records, recipe, version=0, rules={"returns": returns}))
    written, report, _ = asyncio.run(through_verl(python, recipe, batch, folder, ranks))
    values = tapped(folder / "tap" / "critic", ranks)
    told = critic.compare(recipe, batch, written, values, rate(recipe), POLICY, apart)
    clipped = {key: report.metrics.get(key) for key in ("clip_fraction", "value_clip_fraction")}
    told = {"recipe": name, "ranks": ranks, **told, **clipped}
    print(json.dumps(told), file=sys.stderr)
    return told


def keep(every: list[dict[str, Any]], script: str = "run.py") -> None:
    """Write what was found, each recipe and number of ranks beside what was found of others before."""
    place = ROOT / "bench" / "results" / "verl_parity.json"
    known = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    for told in every:
        shape = {key: told[key] for key in ("ranks", "nodes") if key in told}
        command = f"python bench/verl_parity/{script}"
        if told["recipe"] == "curves":
            command += " --curves"
        elif script == "run.py":
            command += f" --recipe {told['recipe']}"
        command += "".join(f" --{key} {value}" for key, value in shape.items())
        name = ", ".join([told["recipe"], *(f"{key} {value}" for key, value in shape.items())])
        known[name] = {"command": command, "result": told}
    place.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n", encoding="utf-8")


def equal(told: Mapping[str, Any]) -> bool:
    """Whether the two drivers did the same."""
    if "value_difference" in told:
        return critic.equal(told)
    return (
        told["advantage_difference"] <= 1e-6
        and told["gradient_cosine"] > 0.9999
        and told["gradient_relative_error"] < 1e-3
        and told.get("weights", {"relative_error": 0.0})["relative_error"] < 1e-2
    )


def main() -> int:
    """Compare; print; exit status 1 where they differ."""
    parser = argparse.ArgumentParser(description="verl and agl-local on the same rows.")
    parser.add_argument("--curves", action="store_true", help="also 20 steps of training, three seeds each")
    parser.add_argument("--recipe", default="grpo", help=f"all, or some of: {', '.join(RECIPES)}")
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel training workers of verl")
    parser.add_argument("--nodes", type=int, default=1, help="Ray nodes, with one training worker each")
    asked = parser.parse_args()
    names = list(RECIPES) if asked.recipe == "all" else asked.recipe.split(",")
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    place = tempfile.TemporaryDirectory(prefix="verl-parity-")
    with place as scratch, cluster(python, asked.nodes) as joined:
        folder = Path(scratch)
        MORE.update(joined.options)
        ranks = joined.options.get("ranks", asked.ranks)
        records = asyncio.run(rollouts(folder / "collect"))
        through = {name: by_hand if RECIPES[name]().critic else compare for name in names}
        every = [through[name](name, python, records, folder / name, ranks) for name in names]
        if asked.nodes > 1:
            every = [{**told, "nodes": asked.nodes} for told in every]
        keep(every)
        told: dict[str, Any] = dict(every[0])
        told["recipes"] = {one["recipe"]: one for one in every} if len(every) > 1 else {}
        if asked.curves:
            runs = {d: [curve(d, s, python, folder / d) for s in SEEDS] for d in ("local", "verl")}
            told["curves"] = overlap(runs["local"], runs["verl"])
            keep([{"recipe": "curves", **told["curves"]}])
    print(json.dumps(told))
    same = all(map(equal, every))
    if asked.curves:
        same = same and told["curves"]["steps_within_the_wider_band"] >= 0.9 * CURVE_STEPS
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
