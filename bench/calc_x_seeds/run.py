"""The demo for seeds 1, 2 and 3, each as a person would start it.

    python bench/calc_x_seeds/run.py [SEED ...] [--write]        (or: make seeds)

``--write`` keeps the figures in ``bench/results/calc_x_seeds.json``, and what each problem earned in
``bench/results/per_task``. The last line is one JSON object: one
entry per seed, and whether every seed doubled with its intervals apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from per_task import keep
from record import RESULTS, machine

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "examples/calc_x/cpu.yaml"


def train(seed: int) -> dict[str, object]:
    """One run of the demo; its last line and its wall time, start-up included."""
    command = ["agl", "train", "--config", CONFIG, "--seed", str(seed)]
    began = time.perf_counter()
    done = subprocess.run(
        [str(Path(sys.executable).parent / "agl"), *command[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"command": " ".join(command), **result, "wall_seconds": round(time.perf_counter() - began, 1)}


def main() -> int:
    """Run the seeds, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="The demo for several seeds.")
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED", help="default: 1 2 3")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    given = parser.parse_args()
    seeds = given.seeds or [1, 2, 3]
    before = machine()
    runs = [train(seed) for seed in seeds]
    result = {
        "runs": runs,
        "doubled": all(r["reward_after"] >= 2 * r["reward_before"] for r in runs),  # type: ignore[operator]
        "intervals_apart": all(r["ci_before"][1] < r["ci_after"][0] for r in runs),  # type: ignore[index]
        "machine": before,
    }
    if given.write:
        keep("calc_x", CONFIG, (), [ROOT / "runs" / str(one["run_id"]) for one in runs])
        (RESULTS / "calc_x_seeds.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))
    return 0 if result["doubled"] and result["intervals_apart"] else 1


if __name__ == "__main__":
    sys.exit(main())
