"""How near each rule × baseline × scale × location comes to the true advantages of small tasks.

    python bench/credit_truth/run.py [--steps 40] [--seed 0]

For every shape (``shapes.py``): the rank correlation of the advantages with the true ones, over all calls,
and the signal to noise of one step's gradient (8 tasks × 8 rollouts). Last line: one JSON object.
``python bench/credit_truth/table.py`` writes the tables of docs/contributing/credit.md from the result.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from estimates import SAMPLES, TASKS, judge, steps_of
from shapes import SHAPES


def main() -> int:
    """Play, estimate, print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=40, help="steps per shape")
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    found = {}
    for shape in SHAPES:
        began = time.perf_counter()
        found[shape.name] = {
            "about": shape.about,
            "cases": judge(shape, steps_of(shape, given.steps, given.seed)),
        }
        print(f"{shape.name}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    rollouts = given.steps * TASKS * SAMPLES
    result = {"steps": given.steps, "rollouts": rollouts, "tasks": TASKS, "samples": SAMPLES, "shapes": found}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
