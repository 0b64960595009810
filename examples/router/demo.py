"""A pretrained model learns to choose databases: evaluate, train, evaluate again (``make demo-real``).

    python examples/router/demo.py [--config FILE] [--seed N] [--steps N] [--set KEY=VALUE ...]

The configuration is ``cpu.yaml``, or ``schemas.yaml`` for the harder row. The table on stderr compares the
policy before and after with scripted policies on the same questions, by kind of distractors. The last line is
one JSON object; ``ahead_of_baseline`` is the mean difference between the trained policy and the best script
that sees what it sees (shared letters) on the same questions. Intervals are of 95 % and over the databases
that the questions are about. The exit status is 1 if a call was not captured exactly.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from agentlightning.cli import run_command  # noqa: E402
from agentlightning.cli.options import last_line, read  # noqa: E402
from agentlightning.train.configured import configure  # noqa: E402
from router.baselines import (  # noqa: E402
    bag_of_schema,
    bag_of_words,
    by_kind,
    chance,
    oracle,
    rewards,
    score,
    shared_letters,
)
from router.datasets import Task  # noqa: E402
from router.memory import PeakMemory  # noqa: E402

Rewards = Mapping[str, Sequence[float]]
"""Who chose → the reward of each task."""
ROWS = {
    "chance": "chance",
    "before": "the model, untrained",
    "baseline_same_words": "count of shared words, sees what the model sees",
    "baseline_letters": "shared letters, sees what the model sees",
    "after": "the model, trained",
    "baseline_schema": "count of shared words, reads all schemas",
    "oracle": "oracle",
}


def evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the evaluations of a run by name, as the files tracker kept them."""
    lines = (folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    return {found["name"]: found for found in map(json.loads, lines)}


def compared(tasks: Sequence[Task], before: Sequence[float], after: Sequence[float]) -> Rewards:
    """Return the rewards of the policy and of the scripted policies for ``tasks``."""
    return {
        "chance": rewards(tasks, chance),
        "before": before,
        "baseline_same_words": rewards(tasks, bag_of_words),
        "baseline_letters": rewards(tasks, shared_letters),
        "after": after,
        "baseline_schema": rewards(tasks, bag_of_schema),
        "oracle": rewards(tasks, oracle(tasks)),
    }


def by_distractor(tasks: Sequence[Task], found: Rewards) -> dict[str, dict[str, Any]]:
    """Return, for each kind of distractors, the number of tasks and the score of everyone."""
    split = {who: by_kind(tasks, values) for who, values in found.items()}
    return {
        kind: {"n": len(own), **{who: score(parts[kind][1], own) for who, parts in split.items()}}
        for kind, (own, _) in split["before"].items()
    }


def show(kinds: Mapping[str, Mapping[str, Any]], found: Rewards, tasks: Sequence[Task]) -> Table:
    """Return the table of everyone's scores, in all and by kind of distractors."""
    table = Table(title="held-out questions: reward, 95 % interval over databases", title_justify="left")
    for column in ("", "all", *kinds):
        n = kinds[column]["n"] if column in kinds else len(found["before"]) if column else ""
        table.add_column(f"{column}\nn = {n}" if column else "", justify="right" if column else "left")
    for who, name in ROWS.items():
        cells = [score(found[who], tasks), *(kind[who] for kind in kinds.values())]
        table.add_row(name, *map(_cell, cells), style="bold" if who == "after" else "")
    return table


def _cell(scored: Mapping[str, Any]) -> str:
    low, high = scored["ci"] or (math.nan, math.nan)
    return f"{scored['reward']:.3f}\n{low:.2f}–{high:.2f}"


def result(summary: Mapping[str, Any], tasks: Sequence[Task], done: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last line of a finished run, without the figures of time and memory. ``done``: the run's
    evaluations by name.
    """
    found = compared(tasks, done["before"]["rewards"], done["after"]["rewards"])
    kinds = by_distractor(tasks, found)
    Console(stderr=True).print(show(kinds, found, tasks))
    totals, metrics = summary["totals"], [one["metrics"] for one in done.values()]
    letters = score(found["baseline_letters"], tasks)
    differences = [a - b for a, b in zip(found["after"], found["baseline_letters"], strict=True)]
    ahead = score(differences, tasks, shares=False)
    return {
        "reward_before": summary["reward_before"],
        "reward_after": summary["reward_after"],
        "ci_before": summary["ci_before"],
        "ci_after": summary["ci_after"],
        "by_distractor": kinds,
        "overall": {who: score(values, tasks) for who, values in found.items()},
        "baseline_letters": letters["reward"],
        "ci_baseline": letters["ci"],
        "ahead_of_baseline": ahead["reward"],
        "ci_ahead": ahead["ci"],
        "train_seconds": summary["train_seconds"],
        "calls": int(totals["calls"] + sum(one["calls_made"] for one in metrics)),
        "calls_exact": int(totals["calls_exact"] + sum(one["calls_exact"] for one in metrics)),
        "seed": summary["seed"],
        "logprob_gap_max": totals["logprob_gap_max"],
        "tokens_trained": int(totals["tokens_trained"]),
        "steps": summary["steps"],
        "eval_tasks": summary["eval_tasks"],
        "run_id": summary["run_id"],
    }


def peaks(memory: PeakMemory) -> dict[str, int]:
    """Return the figures of memory: all processes together, and trainer and engine apart."""
    return {
        "peak_mb": round(memory.megabytes),
        "peak_mb_trainer": round(memory.own),
        "peak_mb_engine": round(memory.started),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Fetch the model if need be, evaluate, train, evaluate, print. ``words``: of the command line."""
    parser = argparse.ArgumentParser(prog="demo.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, default=HERE / "cpu.yaml")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="as of `agl train`")
    given = parser.parse_args(words)
    began = time.perf_counter()
    with PeakMemory() as memory:
        config = read(given.config, given.set, training__seed=given.seed, training__steps=given.steps)
        trainer, agent, train, val = configure(config)
        summary: dict[str, Any] = trainer.fit(agent, train, val)
    folder = config.path(config.output) / summary["run_id"]
    line = result(summary, val, evaluations(folder))
    seconds = round(time.perf_counter() - began, 1)
    last_line({**line, "total_seconds": seconds, **peaks(memory)})
    return 0 if line["calls"] == line["calls_exact"] else 1


if __name__ == "__main__":
    run_command(lambda: sys.exit(main()))
