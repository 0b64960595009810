"""The demo of the text game for several seeds, each as a person would start it.

    python bench/text_world_seeds/run.py [SEED ...] [--write]

``--write`` keeps the figures in ``bench/results/text_world.json``, and what each game earned in
``bench/results/per_task``; runs of other seeds that are there stay. The last line is one JSON object: one
entry per seed, and whether every seed ended clear of where it began and of the baseline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from per_task import keep
from record import RESULTS, machine

ROOT = Path(__file__).resolve().parents[2]
DEMO = "examples/text_world/demo.py"
CONFIG = "examples/text_world/cpu.yaml"
KEPT = RESULTS / "text_world.json"


def train(seed: int) -> dict[str, Any]:
    """One run of the demo: its last line, and the folder of the run."""
    before = {*(ROOT / "runs").glob("*")}
    command = [DEMO, "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    [folder] = [one for one in (ROOT / "runs").glob(f"*-s{seed}") if one not in before]
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return {"seed": seed, "command": " ".join(["python", *command]), **line, "run_id": folder.name}


def judged(runs: list[dict[str, Any]]) -> dict[str, bool]:
    """What holds for every run."""
    return {
        "clear_of_before": all(one["ci_before"][1] < one["ci_after"][0] for one in runs),
        "clear_of_baseline": all(one["baseline"] < one["ci_after"][0] for one in runs),
        "calls_exact": all(one["calls"] == one["calls_exact"] for one in runs),
    }


def main() -> int:
    """Run the seeds, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="The demo of the text game for several seeds.")
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED", help="default: 1 2 3")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    given = parser.parse_args()
    seeds, on = given.seeds or [1, 2, 3], machine()
    runs = [train(seed) for seed in seeds]
    if given.write:
        known = json.loads(KEPT.read_text(encoding="utf-8"))["runs"] if KEPT.exists() else []
        runs = sorted([one for one in known if one["seed"] not in seeds] + runs, key=lambda one: one["seed"])
        kept = {"runs": runs, **judged(runs), "machine": on}
        KEPT.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        keep("text_world", CONFIG, (), [ROOT / "runs" / one["run_id"] for one in runs])
    print(json.dumps({"runs": runs, **judged(runs)}))
    return 0 if all(judged(runs).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
