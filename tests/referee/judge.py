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
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import torch
from learning import reals
from steps import Steps
from stored import Rollout, Run, Unjudged, read_run
from torch import Tensor

EXACT, INTEGRAL, SHOWN = 1e-9, 1e-5, 50


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

    def each(self, kind: str, where: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        """Compare what has a name."""
        for name, value in ours.items():
            self.same(kind, f"{where} {name}", theirs[name], value)

    def tensors(self, kind: str, where: str, theirs: Tensor, ours: Tensor, slack: Any) -> None:
        """Compare tensors entry by entry. ``slack``: a tolerance, or one for each entry."""
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
def students_t(degrees: int) -> float:
    """The 97.5 % quantile, by the integral of the density."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    x = torch.linspace(0, 60, 600_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(scale * (1 + x.square() / degrees) ** (-(degrees + 1) / 2), x)
    at = int(torch.searchsorted(mass, 0.475))  # mass[i] is that of x[i + 1]
    return float(x[at + 1] - 1e-4 * (mass[at] - 0.475) / (mass[at] - mass[at - 1]))


def interval(
    rewards: Sequence[float], units: Sequence[str], cluster: str | None, shares: bool = True
) -> tuple[list[float] | None, str, float]:
    """The 95 % interval of a mean, its kind, and how far a quantile by an integral may move its ends.
    Wilson's (1927) is of shares. Others are of ratios over units (Cochran 1977, chapter 9A): Student's,
    and of clusters the studentised bootstrap (Efron and Tibshirani 1993, section 12.5).
    """
    names, n, p = [*dict.fromkeys(units)], len(rewards), fmean(rewards or [0.0])
    g, binary, what = len(names), shares and set(rewards) <= {0.0, 1.0}, cluster or "tasks"
    z, over = NormalDist().inv_cdf(0.975), f" over {g} {what}" if n > g else ""

    def wilson(q: float) -> list[float]:
        ends = p + q / 2 + reals([-1, 1]) * (q * (p - p * p + q / 4)) ** 0.5
        return (ends / (1 + q)).clamp(0, 1).tolist()

    if binary and (len(set(rewards)) == 1 or n == g > 0):
        return wilson(z**2 / g), f"Wilson{over}", EXACT
    if g < 2:
        return None, f"one {cluster or 'task'} alone" if g else "no reward", EXACT
    both = [*zip(units, rewards, strict=True)]
    sums = reals([[sum(r for u, r in both if u == name), units.count(name)] for name in names])

    def ratio(of: Tensor) -> tuple[Tensor, Tensor]:
        means = of[..., 0].sum(-1) / (count := of[..., 1].sum(-1))
        off = of[..., 0] - of[..., 1] * means[..., None]
        return means, (g / (g - 1) * off.square().sum(-1)).sqrt() / count

    if (error := float(ratio(sums)[1])) <= 1e-12 * abs(p):
        return None, f"all {g} {what} have the mean {p:g}", EXACT
    around, kind, off = students_t(g - 1) * reals([-error, error]), f"Student's t{over}", INTEGRAL * error
    if cluster is not None:
        draw, kind, off = random.Random(0), f"bootstrap over {g} {cluster}", EXACT
        means, errors = ratio(sums[torch.tensor([draw.choices(range(g), k=g) for _ in range(999)])])
        apart = (means - p) / errors.where(errors > 1e-12 * means.abs(), 0.0)
        around = -error * apart.nan_to_num(0.0, torch.inf, -torch.inf).sort().values[[974, 24]]
    if binary and not (p + around).isfinite().all():
        size = min(n, p * (1 - p) / error**2) * float(z / students_t(g - 1)) ** 2
        return wilson(z**2 / size), f"Wilson over {g} {cluster}, {size:.3g} effective", INTEGRAL
    ends = (p + around).clamp(*((0.0, 1.0) if binary else (-torch.inf, torch.inf)))
    return (ends.tolist(), kind, off) if ends.isfinite().all() else (None, f"{g} {what} are too few", EXACT)


def unit(one: Rollout, cluster: str | None, alone: str) -> str:
    """What rollouts of one unit share: their task, or its value of the field ``cluster``."""
    return alone if cluster is None else json.dumps(one.input.get(cluster), sort_keys=True)


def judge_evaluations(run: Run, found: Judgement) -> None:
    """Rewards, means and intervals of what was evaluated, and the summary's."""
    summary, cluster = json.loads((run.folder / "summary.json").read_text()), run.info.get("cluster")
    for batch, said in run.evaluations.items():
        rollouts, where = run.of(batch), f"{run.run_id}, evaluation {said['name']}:"
        rewards = [one.reward for one in rollouts if one.reward is not None]
        units = [unit(one, cluster, one.group) for one in rollouts if one.reward is not None]
        ci, kind, off = interval(rewards, units, cluster)
        failed, given = [one.failure for one in rollouts if one.failure], [one.reward for one in rollouts]
        ours = {"n": len(rollouts), "rewards": given, "reward": fmean(rewards), "interval": kind}
        ours |= {"failed": len(failed), "left_out": given.count(None)}
        found.each("evaluation", where, said, ours)
        found.same("evaluation", f"{where} ci", said["ci"], ci, off)
        when, _, tasks = said["name"].partition("/")
        if when in ("before", "after"):
            of = summary["sets"][tasks] if tasks else summary
            for name, value in {"reward": ours["reward"], "ci": ci, "interval": kind}.items():
                key = f"{name}_{when}"
                found.same("evaluation", f"{run.run_id}, summary: {key}", of[key], value, off)


# ------------------------------------------------------------------------------------- compare and rescore
def judge_comparison(said: Mapping[str, Any], first: Run, second: Run, found: Judgement) -> None:
    """What ``agl compare FIRST SECOND --json`` printed."""
    cluster = first.info.get("cluster") or second.info.get("cluster")
    for one in said["evaluations"]:
        where, units = f"compare {first.run_id} {second.run_id}, {one['name']}:", dict[str, str]()
        given: list[dict[str, list[float]]] = [defaultdict(list), defaultdict(list)]
        for run, rewards in zip((first, second), given, strict=True):
            batches = [batch for batch, e in run.evaluations.items() if e["name"] == one["name"]]
            for o in run.of(batches[-1]) if batches else ():
                if o.reward is not None:
                    rewards[o.task].append(o.reward)
                    units[o.task] = unit(o, cluster, o.task)
        tasks = sorted(given[0].keys() & given[1].keys())
        gains = [fmean(given[1][task]) - fmean(given[0][task]) for task in tasks]
        ci, kind, off = interval(gains, [units[task] for task in tasks], cluster, shares=False)
        ours = {"tasks": len(gains), "difference": fmean(gains) if gains else None}
        ours |= {"better": sum(gain > 0 for gain in gains), "worse": sum(gain < 0 for gain in gains)}
        ours |= {"interval": kind if gains else ""}
        ours |= {"unpaired": len(given[0].keys() ^ given[1].keys()) if all(given) else 0}
        found.each("compare", where, one, ours)
        found.same("compare", f"{where} ci", one["ci"], ci, off)
    for side, run in (("first", first), ("second", second)):
        steps = [run.of(f"train/{step}") for step in sorted({step for step, _ in run.reports})]
        earned = [[o.reward for o in of if o.reward is not None] for of in steps]
        means = [fmean(of) if of else None for of in earned]
        found.same("compare", f"curve of {run.run_id}", said["curves"][side], means)


def judge_rescoring(said: Mapping[str, Any], run: Run, found: Judgement) -> None:
    """What ``agl rescore`` stored and printed of the function that asks for the word ANSWER in the answer."""
    scored = [o for o in run.rollouts if o.status == "succeeded" or o.failure in ("no-reward", "bad-reward")]
    ours = {o.rollout_id: float(bool(o.calls) and "ANSWER" in o.calls[-1].text) for o in scored}
    stored = run.rescored[said["name"]]
    for rollout in ours.keys() | stored.keys():
        found.same("rescore", f"{run.run_id} {rollout}", stored.get(rollout), ours.get(rollout))
    before = fmean(one.reward for one in scored if one.reward is not None)
    found.each("rescore", run.run_id, said, {"mean_before": before, "mean_after": fmean(ours.values())})
