"""Settings of the training by reward after fine-tuning on word problems, compared on the validation split.

    python bench/record.py word_problems_settings -- python bench/word_problems_settings.py POLICY
    python bench/word_problems_settings.py POLICY [LR:STEPS:GROUP:TEMPERATURE ...] [--seeds 1]

``POLICY`` is the fine-tuned folder that ``make svamp-real`` leaves in ``runs/word_problems-sft-…``. Every run
trains on SVAMP's training split and is evaluated, greedily, on the validation split before and after; the
test split is not touched. The last line is one JSON object with each run's rewards and their intervals, the
mean difference on the same problems with its interval, and how many groups had a spread of rewards, without
which a step has no gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from agentlightning.algorithms.intervals import mean_interval
from agentlightning.types.base import LEARNED_NOTHING

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "word_problems" / "cpu.yaml"
DEFAULT = ("1e-5:20:8:1", "3e-5:20:8:1", "1e-5:60:8:1", "1e-5:20:16:1.2")
"""Learning rate, steps, rollouts of a group, and the temperature of training."""


def train(policy: str, setting: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one run."""
    lr, steps, group, temperature = setting.split(":")
    sets = {
        "backend.policy": policy,
        "backend.options.lr": f"{float(lr):f}",
        "training.recipe.group_size": int(group),
        "training.recipe.temperature": float(temperature),
        "output": folder,
    }
    given = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    words = ["train", "--config", str(CONFIG), "--seed", str(seed), "--steps", steps, *given]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("agl")), *words],
        env={**os.environ, "PYTHONPATH": str(CONFIG.parents[1])},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    if done.returncode not in (0, LEARNED_NOTHING):
        raise SystemExit(done.returncode)
    line = json.loads(done.stdout.strip().splitlines()[-1])
    chosen = {"lr": float(lr), "steps": int(steps), "group": int(group), "temperature": float(temperature)}
    kept = ("reward_before", "reward_after", "ci_before", "ci_after", "train_seconds", "calls", "calls_exact")
    return {
        **chosen,
        "seed": seed,
        **{key: line[key] for key in kept},
        **_gain(folder / line["run_id"]),
        "groups_with_spread": _spread(folder / line["run_id"]),
    }


def _gain(run: Path) -> dict[str, Any]:
    """Return the mean difference of rewards on the same problems, with its interval."""
    lines = (run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    found = {one["name"]: one["rewards"] for one in map(json.loads, lines)}
    gains = [after - before for after, before in zip(found["after"], found["before"], strict=True)]
    return {"gain": fmean(gains), "ci_gain": mean_interval(gains, shares=False).ends, "n": len(gains)}


def _spread(run: Path) -> float:
    """Return the share of groups whose rewards were not all equal."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line)["metrics"] for line in lines]
    groups = sum(one["groups"] for one in metrics)
    return float(1 - sum(one["groups_zero_std"] for one in metrics) / groups)


def main() -> None:
    """Run every setting with every seed, print."""
    parser = argparse.ArgumentParser(description="Settings of the training by reward on word problems.")
    parser.add_argument("policy", help="the fine-tuned folder")
    parser.add_argument("settings", nargs="*", default=list(DEFAULT), metavar="LR:STEPS:GROUP:TEMPERATURE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    given = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for setting in given.settings:
            for seed in given.seeds:
                run = train(str(Path(given.policy).resolve()), setting, seed, Path(folder))
                print(json.dumps(run), file=sys.stderr, flush=True)
                runs.append(run)
    print(json.dumps({"runs": runs}))


if __name__ == "__main__":
    main()
