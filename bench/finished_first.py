"""Agents whose durations have a heavy tail: a run with `order: dataset`, and one with `order: finished`.

    python bench/finished_first.py [--config examples/calc_x/cpu.yaml] [--steps 40] [--seeds 1 2 3]
                                   [--ahead 1] [--staleness 4] [--median 0.5] [--tail 1.2] [--folder DIR]

Each rollout of training waits in its environment before its agent asks, which costs no core: a time drawn
from a Pareto distribution with median ``--median`` seconds and shape ``--tail`` (the smaller, the heavier),
at most 60 medians. It is a function of task and seed, so that both orders wait equally long for the same
rollout. Both have the same `async_steps`, staleness and cap of importance weights, and enough
`agent.concurrency` for all groups in flight. The last line is one JSON object: each run, and means over the
seeds. Exit status 1 if the mean reward after training with `finished` is below that with `dataset` by more
than 0.05, or if a trained token was older than the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentlightning import LLM, Rollout
from agentlightning.algorithms.rollouts.batching import stable_seed
from agentlightning.cli.options import read
from agentlightning.train.config import from_fields
from agentlightning.train.configured import configure, import_target

ROOT = Path(__file__).resolve().parents[1]
CAP, MARGIN, LONGEST = 2.0, 0.05, 60.0
ORDERS = ("dataset", "finished")
MEANS = (
    "reward_before", "reward_after", "seconds_per_step", "rollout", "update", "sync", "staleness_mean",
    "started_again",
)  # fmt: skip


def duration(rollout: Rollout, median: float, tail: float) -> float:
    """Seconds that a rollout waits: a quantile of the Pareto distribution, at a place that its seed gives."""
    place = (stable_seed("duration", rollout.task_id, rollout.seed) + 0.5) / 2**63
    return float(min(median * (2.0 * (1.0 - place)) ** (-1.0 / tail), LONGEST * median))


def train(args: argparse.Namespace, folder: Path, order: str, seed: int) -> dict[str, Any]:
    """One run of the demo."""
    sets = [
        f"training.order={order}",
        f"training.async_steps={args.ahead}",
        f"training.recipe.max_staleness={args.staleness}",
        f"training.recipe.importance_cap={CAP}",
        f"output={folder}",
        "environment.headroom={}",
        "trackers=[files]",
    ]
    given = read(args.config, sets, training__seed=seed, training__steps=args.steps)
    given = from_fields({"concurrency": given.agent.concurrency * (1 + args.ahead)}, given)
    assert given.agent.target is not None
    solve = import_target(given.agent.target, "agent.target")
    trainer, _, train_tasks, val_tasks = configure(given)

    async def slow(task: Any, llm: LLM, rollout: Rollout) -> float:
        if rollout.mode == "train":
            await asyncio.sleep(duration(rollout, args.median, args.tail))
        reward: float = await solve(task, llm)
        return reward

    summary = trainer.fit(slow, train_tasks, val_tasks)
    lines = (folder / summary["run_id"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    return {
        "order": order,
        "seed": seed,
        "reward_before": summary["reward_before"],
        "reward_after": summary["reward_after"],
        "seconds_per_step": round(summary["train_seconds"] / args.steps, 3),
        **{phase: _mean([r["seconds"][phase] for r in reports]) for phase in ("rollout", "update", "sync")},
        "staleness_mean": _mean([r["metrics"].get("staleness_mean", 0.0) for r in reports]),
        "staleness_max": max(r["metrics"].get("staleness_max", 0.0) for r in reports),
        "stale_left_out": sum(r["metrics"].get("left_out/stale", 0.0) for r in reports),
        "started_again": sum(r["metrics"].get("async/started_again", 0.0) for r in reports),
        "overtaken_mean": _mean([r["metrics"].get("async/overtaken", 0.0) for r in reports]),
        "rollouts": summary["totals"]["rollouts"],
    }


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 3)


def main() -> int:
    """All runs, then their means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=ROOT / "examples" / "calc_x" / "cpu.yaml")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--ahead", type=int, default=1, help="async_steps of both orders.")
    parser.add_argument("--staleness", type=int, default=4, help="max_staleness of both orders.")
    parser.add_argument("--median", type=float, default=0.5)
    parser.add_argument("--tail", type=float, default=1.2)
    parser.add_argument("--folder", type=Path, help="Keep the runs here; none: nothing is kept.")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in args.seeds:
            for order in ORDERS:
                run = train(args, args.folder or Path(scratch), order, seed)
                print(json.dumps(run), file=sys.stderr, flush=True)
                runs.append(run)
    means = {
        order: {key: _mean([run[key] for run in runs if run["order"] == order]) for key in MEANS}
        for order in ORDERS
    }
    kept = means["finished"]["reward_after"] >= means["dataset"]["reward_after"] - MARGIN
    bound = all(run["staleness_max"] <= args.staleness and not run["stale_left_out"] for run in runs)
    settings = {"steps": args.steps, "async_steps": args.ahead, "max_staleness": args.staleness}
    waits = {"median": args.median, "tail": args.tail}
    print(
        json.dumps(
            {**settings, **waits, "means": means, "reward_kept": kept, "bound_held": bound, "runs": runs}
        )
    )
    return 0 if kept and bound else 1


if __name__ == "__main__":
    sys.exit(main())
