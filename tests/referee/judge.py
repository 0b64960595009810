"""The referee: computes a run's numbers again from its files, and lists what is not what it should be.

Invariant: nothing here is imported from the product; only file formats are shared. The referee computes in
float64, the product trains in float32, so these differences are taken for rounding:

- logprobs, and what is summed of them: 1e-4 (engine and trainer agree to about 4e-6);
- AdamW's first moments, which are sums of gradients: ``3 * DELTA`` times the largest entry of the tensor;
- weights: what AdamW makes of such a difference in the gradient, ``2 * lr * DELTA * max|g| / (sqrt(v) +
  eps)`` but at most twice the learning rate, for each optimizer step, and two units in the last place;
- after several optimizer steps without a checkpoint between them, the metrics 20 times and the moments 100
  times as much, because AdamW turns the rounding of one step into weights of the next;
- everything that no network computes: 1e-9.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist, fmean, stdev
from typing import Any

import torch
from steps import Steps
from stored import Run, Unjudged, read_run
from torch import Tensor

EXACT, SHOWN = 1e-9, 50


@dataclass
class Judgement:
    """What was compared, and what differs."""

    values: Counter[str] = field(default_factory=Counter)
    """Kind → how many."""
    differences: list[dict[str, Any]] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)

    def same(self, kind: str, where: str, theirs: Any, ours: Any, tolerance: float = EXACT) -> None:
        """Compare a number, or a list of them; what is missing on one side differs."""
        if isinstance(ours, list) and isinstance(theirs, list | tuple) and len(ours) == len(theirs):
            for place, (a, b) in enumerate(zip(theirs, ours, strict=True)):
                self.same(kind, f"{where}[{place}]", a, b, tolerance)
            return
        self.values[kind] += 1
        numbers = all(isinstance(one, int | float) for one in (theirs, ours))
        if not (abs(theirs - ours) <= tolerance * max(1.0, abs(ours)) if numbers else theirs == ours):
            self.differences.append({"kind": kind, "where": where, "theirs": theirs, "ours": ours})

    def tensors(self, kind: str, where: str, theirs: Tensor, ours: Tensor, slack: Tensor) -> None:
        """Compare tensors entry by entry; each has its tolerance."""
        self.values[kind] += ours.numel()
        over = ((theirs.double() - ours).abs() / slack).nan_to_num(torch.inf)
        if count := int((over > 1).sum()):
            worst = int(over.argmax())
            said = {"theirs": float(theirs.flatten()[worst]), "ours": float(ours.flatten()[worst])}
            self.differences.append({"kind": kind, "where": where, "entries": count, **said})

    def report(self, runs: int) -> dict[str, Any]:
        """What was found, for the last line of a command; the first differences go to standard error."""
        for one in [*map(json.dumps, self.differences[:SHOWN]), *(f"not judged: {u}" for u in self.unjudged)]:
            print(one, file=sys.stderr)
        counts = {"runs": runs, "values": self.values.total(), "differences": len(self.differences)}
        return {**counts, "unjudged": len(self.unjudged), "kinds": dict(self.values)}


def judge_run(folder: Path, found: Judgement) -> Run:
    """Judge a run: its evaluations, its rewards, and each of its steps."""
    torch.set_num_threads(1)
    run = read_run(folder)
    judge_evaluations(run, found)
    alone = {"policy": {"path": run.info["policy"], "options": {}, "trained": True}}
    for name, policy in (run.info.get("policies") or alone).items():
        try:
            if policy["trained"]:
                Steps(run, name, policy, found).judge()
        except Unjudged as why:
            found.unjudged.append(f"{run.run_id}, policy {name}: {why}")
    return run


# ----------------------------------------------------------------------------------------------- evaluations
def wilson(rewards: Sequence[float]) -> list[float]:
    """The 95 % score interval of a share (Wilson 1927)."""
    z, n, p = NormalDist().inv_cdf(0.975), len(rewards), fmean(rewards)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [max(0.0, centre - half), min(1.0, centre + half)]


def students_t(degrees: int) -> float:
    """The 97.5 % quantile, by the integral of the density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    x = torch.linspace(0, 60, 600_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(scale * (1 + x.square() / degrees) ** (-(degrees + 1) / 2), x)
    return float(x[1 + int(torch.searchsorted(mass, 0.475))])


def judge_evaluations(run: Run, found: Judgement) -> None:
    """Means and intervals of what was evaluated, and the summary's."""
    summary = json.loads((run.folder / "summary.json").read_text())
    for batch, said in run.evaluations.items():
        rollouts, where = run.of(batch), f"{run.run_id}, evaluation {said['name']}:"
        rewards = [one.reward for one in rollouts if one.reward is not None]
        if any(one.status != "succeeded" for one in rollouts) or len(rewards) < len(rollouts):
            found.unjudged.append(f"{where} failed rollouts")
            continue
        if not set(rewards) <= {0.0, 1.0} or len({one.task for one in rollouts}) < len(rollouts):
            found.unjudged.append(f"{where} an interval of other rewards than 0 and 1, one a task")
            continue
        ours = {"n": len(rewards), "reward": fmean(rewards), "rewards": rewards, "ci": wilson(rewards)}
        for name, value in ours.items():
            found.same("evaluation", f"{where} {name}", said[name], value)
        if said["name"] in ("before", "after"):
            for name in ("reward", "ci"):
                key = f"{name}_{said['name']}"
                found.same("evaluation", f"{run.run_id}, summary: {key}", summary[key], ours[name])


# ------------------------------------------------------------------------------------- compare and rescore
def judge_comparison(said: Mapping[str, Any], first: Run, second: Run, found: Judgement) -> None:
    """What ``agl compare FIRST SECOND --json`` printed."""
    for one in said["evaluations"]:
        where, by_task = f"compare {first.run_id} {second.run_id}, {one['name']}:", []
        for run in (first, second):
            batch = next(batch for batch, e in run.evaluations.items() if e["name"] == one["name"])
            by_task.append({o.task: o.reward for o in run.of(batch) if o.reward is not None})
        gains = [
            by_task[1][task] - by_task[0][task] for task in sorted(by_task[0].keys() & by_task[1].keys())
        ]
        half = students_t(len(gains) - 1) * stdev(gains) / math.sqrt(len(gains))
        # Equal gains say nothing of how far others may be apart: there is no interval.
        ci = [fmean(gains) - half, fmean(gains) + half] if half else None
        signs = {"better": sum(gain > 0 for gain in gains), "worse": sum(gain < 0 for gain in gains)}
        for name, value in {"tasks": len(gains), "difference": fmean(gains), **signs}.items():
            found.same("compare", f"{where} {name}", one[name], value)
        found.same("compare", f"{where} ci", one["ci"], ci, 2e-3)
    for side, run in (("first", first), ("second", second)):
        steps = [run.of(f"train/{step}") for step in sorted({step for step, _ in run.reports})]
        means = [fmean(one.reward for one in of if one.reward is not None) for of in steps]
        found.same("compare", f"curve of {run.run_id}", said["curves"][side], means)


def judge_rescoring(said: Mapping[str, Any], run: Run, found: Judgement) -> None:
    """What ``agl rescore`` stored and printed of the function that asks for the word ANSWER in the answer."""
    ours = {one.rollout_id: float("ANSWER" in one.calls[-1].text) for one in run.rollouts if one.calls}
    stored = run.rescored[said["name"]]
    for rollout in ours.keys() | stored.keys():
        found.same("rescore", f"{run.run_id} {rollout}", stored.get(rollout), ours.get(rollout))
    before = fmean(one.reward for one in run.rollouts if one.reward is not None)
    for name, value in {"mean_before": before, "mean_after": fmean(ours.values())}.items():
        found.same("rescore", f"{run.run_id}: {name}", said[name], value)
