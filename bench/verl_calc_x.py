"""verl's own trainer trains the calc_x agent on a CPU; agent and verl in environments of their own.

    python bench/verl_calc_x.py [--steps 16]        (or: make test-verl)

The AutoGen agent, store, gateway and runner live in this interpreter, verl (Ray, FSDP, the V1 trainer and
the embedded engine) in ``.venvs/verl``, made if need be. The last line is one JSON object: mean training
reward of the first and the last three steps, steps, and seconds of the whole command. Exit status 1 if a call
was not captured exactly, or if with 15 steps or more the reward did not rise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EDGE = 3
LONG = 15
"""Steps from which on the reward must have risen."""


def main() -> int:
    """Train, and tell what came of it."""
    parser = argparse.ArgumentParser(description="Train calc_x with verl.")
    parser.add_argument("--steps", type=int, default=16)
    steps = parser.parse_args().steps
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="verl-calc-x-") as output:
        settings = {
            "training.steps": steps,
            "environment.headroom": "{}",
            "environment.val.limit": 64,
            "output": output,
            "backend.options.python": python,
        }
        command = [sys.executable, "-m", "_agl_main", "train", "--config", "examples/calc_x/verl.yaml"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)
        (folder,) = Path(output).iterdir()
        summary = json.loads((folder / "summary.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    rewards = [json.loads(line)["metrics"]["reward_mean"] for line in lines]
    totals = summary["totals"]
    first, last = (sum(part) / len(part) for part in (rewards[:EDGE], rewards[-EDGE:]))
    told = {
        "reward_first": round(first, 4),
        "reward_last": round(last, 4),
        "steps": len(rewards),
        "seconds": round(time.perf_counter() - begin, 1),
        "before": summary["reward_before"],
        "after": summary["reward_after"],
        "calls": int(totals["calls"]),
        "calls_exact": int(totals["calls_exact"]),
    }
    print(json.dumps(told))
    whole = len(rewards) == steps and totals["calls"] == totals["calls_exact"]
    return 0 if whole and (steps < LONG or last > first) else 1


if __name__ == "__main__":
    sys.exit(main())
