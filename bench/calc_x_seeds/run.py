"""The demo for seeds 1, 2 and 3, each as a person would start it; writes ``bench/results/calc_x_seeds.json``.

    python bench/calc_x_seeds/run.py [SEED ...]        (or: make seeds)

The last line is one JSON object: one entry per seed, and whether every seed doubled with its intervals apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from record import machine

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
        text=True,
        check=True,
    )
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"command": " ".join(command), **result, "wall_seconds": round(time.perf_counter() - began, 1)}


def main() -> int:
    """Run the seeds and write the result."""
    seeds = [int(s) for s in sys.argv[1:]] or [1, 2, 3]
    before = machine()
    runs = [train(seed) for seed in seeds]
    result = {
        "runs": runs,
        "doubled": all(r["reward_after"] >= 2 * r["reward_before"] for r in runs),  # type: ignore[operator]
        "intervals_apart": all(r["ci_before"][1] < r["ci_after"][0] for r in runs),  # type: ignore[index]
        "machine": before,
    }
    target = ROOT / "bench" / "results" / "calc_x_seeds.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0 if result["doubled"] and result["intervals_apart"] else 1


if __name__ == "__main__":
    sys.exit(main())
