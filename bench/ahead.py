"""Rollouts of later steps under way while one is trained: reward and seconds per step, beside `async_steps`
0.

    python bench/ahead.py [--config examples/calc_x/cpu.yaml] [--steps 40] [--seeds 1 2 3] [--ahead 0 1]
                          [--wait 0 1] [--folder DIR]

``--wait``: seconds that each rollout's environment takes before the agent asks, which cost no core: 0 is the
demo as it is, whose engine and update share the machine's cores. With `async_steps` k the recipe has
staleness k and importance_cap 2; `agent.concurrency` is enough for all steps under way, in every run. The
last line is one JSON object: each run, and means over the seeds. Exit status 1 if the mean reward after
training with `async_steps` is below that without by more than 0.05.
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

from agentlightning import LLM
from agentlightning.cli.options import read
from agentlightning.train.config import from_fields
from agentlightning.train.configured import configure, import_target

ROOT = Path(__file__).resolve().parents[1]
CAP = 2.0
MARGIN = 0.05
MEANS = ("reward_before", "reward_after", "seconds_per_step", "rollout", "update", "sync", "staleness_mean")


def train(
    config: Path, folder: Path, *, seed: int, steps: int, ahead: int, wait: float, places: int
) -> dict[str, Any]:
    """One run of the demo. ``places``: steps whose rollouts may run at a time."""
    sets = [
        f"training.async_steps={ahead}",
        f"output={folder}",
        "environment.headroom={}",
        "trackers=[files]",
    ]
    if ahead:
        sets += [f"training.recipe.max_staleness={ahead}", f"training.recipe.importance_cap={CAP}"]
    given = read(config, sets, training__seed=seed, training__steps=steps)
    given = from_fields({"concurrency": given.agent.concurrency * places}, given)
    solve = import_target(given.agent.target, "agent.target")
    trainer, agent, train_tasks, val_tasks = configure(given)

    async def slow(task: Any, llm: LLM) -> float:
        await asyncio.sleep(wait)
        reward: float = await solve(task, llm)
        return reward

    summary = trainer.fit(slow if wait else agent, train_tasks, val_tasks)
    lines = (folder / summary["run_id"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    return {
        "seed": seed,
        "ahead": ahead,
        "wait": wait,
        "reward_before": summary["reward_before"],
        "reward_after": summary["reward_after"],
        "seconds_per_step": round(summary["train_seconds"] / steps, 3),
        **{phase: _mean([r["seconds"][phase] for r in reports]) for phase in ("rollout", "update", "sync")},
        "staleness_mean": _mean([r["metrics"].get("staleness_mean", 0.0) for r in reports]),
        "stale_left_out": sum(r["metrics"].get("out/stale", 0.0) for r in reports),
        "ended_before_their_turn": sum(r["metrics"].get("async/ended", 0.0) for r in reports),
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
    parser.add_argument("--ahead", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--wait", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--folder", type=Path, help="Keep the runs here; none: nothing is kept.")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for wait in args.wait:
            for seed in args.seeds:
                for ahead in args.ahead:
                    folder = args.folder or Path(scratch)
                    given = {"seed": seed, "steps": args.steps, "ahead": ahead, "wait": wait}
                    run = train(args.config, folder, places=max(args.ahead) + 1, **given)
                    print(json.dumps(run), file=sys.stderr, flush=True)
                    runs.append(run)
    means = []
    for wait in args.wait:
        for ahead in args.ahead:
            mine = [run for run in runs if (run["wait"], run["ahead"]) == (wait, ahead)]
            means.append({"wait": wait, "ahead": ahead, **{k: _mean([r[k] for r in mine]) for k in MEANS}})
    after = {(one["wait"], one["ahead"]): one["reward_after"] for one in means}
    kept = all(after[w, k] >= after.get((w, 0), 0.0) - MARGIN for w, k in after)
    print(json.dumps({"steps": args.steps, "means": means, "reward_kept": kept, "runs": runs}))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
