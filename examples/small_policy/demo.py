"""The demo of an example with a small policy: evaluate, train, evaluate, and put it beside a script."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from agentlightning.algorithms.intervals import mean_interval
from agentlightning.cli.options import last_line, read
from agentlightning.hookspecs import hookimpl
from agentlightning.train.configured import configure
from agentlightning.types import Evaluation


class Evaluated:
    """What a run's summary leaves out of its evaluations: how many calls they made, and what each task earned
    by the trained policy.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rewards: list[float | None] = []

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        for name in ("calls_made", "calls_exact"):
            self.counts[name] += int(evaluation.metrics[name])
        if evaluation.name == "after":
            self.rewards = evaluation.rewards


def main(
    example: Path,
    about: str,
    baseline: Callable[[Sequence[Any]], Sequence[float]],
    words: Sequence[str] | None,
) -> int:
    """Train by ``cpu.yaml`` of the folder ``example`` and print one JSON object as the last line.

    ``about``: the docstring of the demo; ``baseline``: what a script earns on each held-out task; ``words``:
    of the command line (None: this process's). ``ahead_of_baseline`` in the line is the mean difference to
    the script, task by task. Return 1 if a call was not captured exactly, or if the oracle of
    ``environment.headroom``, where there is one, fell short of 1.0.
    """
    parser = argparse.ArgumentParser(prog="demo.py", description=about.partition("\n")[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="as of `agl train`")
    given = parser.parse_args(words)
    began, evaluated = time.perf_counter(), Evaluated()
    config = read(example / "cpu.yaml", given.set, training__seed=given.seed, training__steps=given.steps)
    trainer, agent, train, held_out = configure(config)
    callbacks = [*trainer.config.callbacks, evaluated]
    trainer.config = trainer.config.model_copy(update={"callbacks": callbacks})
    summary: dict[str, Any] = trainer.fit(agent, train, held_out)
    totals, made = summary["totals"], evaluated.counts
    script = baseline(held_out)
    ahead, ci_ahead = difference(evaluated.rewards, script, held_out, config.evaluation.cluster)
    calls = int(totals["calls"]) + made["calls_made"]
    exact = int(totals["calls_exact"]) + made["calls_exact"]
    last_line(
        {
            "before": summary["reward_before"],
            "after": summary["reward_after"],
            "ci_before": summary["ci_before"],
            "ci_after": summary["ci_after"],
            "baseline": round(fmean(script), 4),
            "ahead_of_baseline": ahead,
            "ci_ahead": ci_ahead,
            "calls": calls,
            "calls_exact": exact,
            "seconds": round(time.perf_counter() - began, 1),
        }
    )
    return int(calls != exact or (summary.get("headroom") or {}).get("oracle", 1.0) != 1.0)


def difference(
    earned: Sequence[float | None], script: Sequence[float], tasks: Sequence[Any], cluster: str | None
) -> tuple[float | None, tuple[float, float] | None]:
    """Return by how much the policy is ahead of the script on the same tasks, and the 95 % interval of that.
    ``earned``: the reward of each task, or None where it was left out; ``cluster``: the field of the tasks
    that says which are not independent. ``None`` where no task has a reward, as after an interrupted run.
    """
    pairs = zip(earned or [None] * len(tasks), script, tasks, strict=True)
    found = [(reward - other, task) for reward, other, task in pairs if reward is not None]
    if not found:
        return None, None
    ahead = [one for one, _ in found]
    units = [task[cluster] for _, task in found] if cluster else None
    return round(fmean(ahead), 4), mean_interval(ahead, units, cluster, shares=False).ends
