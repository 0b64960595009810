"""Settings of the demo with a pretrained model, compared on training databases that are held out for it.

    python bench/record.py router_settings -- python bench/router_settings.py
    python bench/router_settings.py [LR:STEPS:TEMPERATURE ...] [--seed N]

Each run trains on the questions about 70 training databases and is evaluated on the 451 questions about the
other 12; the development questions are never touched. The last line is one JSON object: the reward after each
setting with its interval, the seconds of training, and the setting with the highest reward.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SETS = ("environment.train.args.spec=tuning:train", "environment.val.args.spec=tuning:heldout")
DEFAULT = ("3e-5:22:1", "3e-5:22:2", "3e-5:22:3")
"""Learning rate, steps, and the temperature of training."""
KEPT = ("reward_before", "reward_after", "ci_after", "baseline_letters", "train_seconds", "eval_tasks")


def train(setting: str, seed: int) -> dict[str, Any]:
    """Return the figures of one run. ``setting``: learning rate, steps and temperature, as ``3e-5:22:1``."""
    lr, steps, temperature = setting.split(":")
    sets = [
        *SETS,
        f"backend.options.lr={float(lr):f}",
        f"training.steps={int(steps)}",
        f"training.recipe.temperature={float(temperature)}",
    ]
    given = [part for one in sets for part in ("--set", one)]
    command = [sys.executable, "examples/router/demo.py", "--seed", str(seed), *given]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    line = json.loads(done.stdout.strip().splitlines()[-1])
    chosen = {"lr": float(lr), "steps": int(steps), "temperature": float(temperature)}
    return {**chosen, "seed": seed, **{key: line[key] for key in KEPT}}


def main() -> None:
    """Run every setting, print."""
    parser = argparse.ArgumentParser(description="Settings of the demo on held-out databases.")
    parser.add_argument("settings", nargs="*", default=list(DEFAULT), metavar="LR:STEPS:TEMPERATURE")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    runs = [train(setting, given.seed) for setting in given.settings]
    best = max(runs, key=lambda one: one["reward_after"])
    print(json.dumps({"runs": runs, "best": {key: best[key] for key in ("lr", "steps", "temperature")}}))


if __name__ == "__main__":
    main()
