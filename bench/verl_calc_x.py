"""verl's own trainer trains the calc_x agent on a CPU; agent and verl in environments of their own.

    python bench/verl_calc_x.py [--steps 16] [--recipe grpo] [--mode sync] [--nodes 1]    (or: make test-verl)

The AutoGen agent, store, gateway and runner live in this interpreter, verl (Ray, FSDP, the V1 trainer and
the embedded engine) in ``.venvs/verl``, made if need be. The last line is one JSON object: mean training
reward of the first and the last three steps, steps, and seconds of the whole command. Exit status 1 if a
call that was answered (not refused as over-length) was not captured exactly, or if with 15 steps or more
the reward did not rise. ``--recipe ppo`` trains a critic beside the policy; its value losses are told too.
``--nodes 2``: the run joins a Ray cluster on this machine, which afterwards must stand, with nothing of the
run left in it. ``--mode colocate_async``: the next step's rollouts are under way while a step is trained,
and stand still when engine and trainer would be in each other's way; tokens of the version before are
corrected (``importance_cap`` 2).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ray_nodes import cluster

ROOT = Path(__file__).resolve().parents[1]
EDGE = 3
LONG = 15
"""Steps from which on the reward must have risen."""
OPTIONS = {
    "grpo": {},
    "ppo": {
        "backend.options.lr": 2e-4,
        "backend.options.critic_lr": 1e-3,
        "backend.options.critic_warmup": 2,
    },
}
"""Recipe → what is set otherwise than in the example's configuration."""
AHEAD = {
    "training.async_steps": 1,
    "training.recipe.max_staleness": 1,
    "training.recipe.importance_cap": 2.0,
    "agent.concurrency": 128,
    "backend.options.max_num_seqs": 128,
}
MODES = {"sync": {}, "colocate_async": {"backend.options.mode": "colocate_async", **AHEAD}}
"""The same of verl's modes; there is room for the rollouts of two steps."""


def main() -> int:
    """Train, and tell what came of it."""
    parser = argparse.ArgumentParser(description="Train calc_x with verl.")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--recipe", default="grpo", choices=[*OPTIONS])
    parser.add_argument("--mode", default="sync", choices=[*MODES])
    parser.add_argument("--nodes", type=int, default=1, help="Ray nodes, with one training worker each")
    asked = parser.parse_args()
    steps = asked.steps
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="verl-calc-x-") as output, cluster(python, asked.nodes) as joined:
        settings = {
            **joined.settings,
            "training.steps": steps,
            "training.algorithm": asked.recipe,
            **OPTIONS[asked.recipe],
            **MODES[asked.mode],
            "environment.headroom": "{}",
            "environment.val.limit": 64,
            "output": output,
            "backend.options.python": python,
        }
        command = [sys.executable, "-m", "_agl_main", "train", "--config", "examples/calc_x/verl.yaml"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        left = joined.left()
        (folder,) = Path(output).iterdir()
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines]
    rewards = [report["metrics"]["reward_mean"] for report in reports]
    totals = summary["totals"]
    first, last = (sum(part) / len(part) for part in (rewards[:EDGE], rewards[-EDGE:]))
    refused = int(sum(report["metrics"].get("failed/over-length", 0) for report in reports))
    told = {
        "reward_first": round(first, 4),
        "reward_last": round(last, 4),
        "steps": len(rewards),
        "seconds": round(time.perf_counter() - begin, 1),
        "before": summary["reward_before"],
        "after": summary["reward_after"],
        "calls": int(totals["calls"]),
        "calls_exact": int(totals["calls_exact"]),
        "calls_refused": refused,
        **late(reports),
        **learnt(reports),
        **left,
    }
    print(json.dumps(told))
    whole = len(rewards) == steps and totals["calls"] == totals["calls_exact"] + refused
    whole = whole and left.get("nodes_after", asked.nodes) == asked.nodes and not left.get("workers_left")
    return 0 if whole and (steps < LONG or last > first) else 1


def learnt(reports: list[dict[str, Any]]) -> dict[str, float]:
    """A critic's loss, at first and last; nothing without one."""
    losses = [r["metrics"]["value_loss"] for r in reports if "value_loss" in r["metrics"]]
    if not losses:
        return {}
    first, last = (sum(part) / len(part) for part in (losses[:EDGE], losses[-EDGE:]))
    return {"value_loss_first": round(first, 4), "value_loss_last": round(last, 4)}


def late(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """How many tokens were of an older version, how old at most, and a step's phases without the first's."""
    steady = reports[1:] or reports
    phases = {k: sum(r["seconds"][k] for r in steady) / len(steady) for k in ("rollout", "update")}
    return {
        "tokens": int(sum(r["metrics"]["tokens_trained"] for r in reports)),
        "tokens_stale": int(sum(r["metrics"]["tokens_stale"] for r in reports)),
        "staleness_max": int(max(r["metrics"].get("staleness_max", 0) for r in reports)),
        **{f"seconds_{name}": round(seconds, 2) for name, seconds in phases.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
