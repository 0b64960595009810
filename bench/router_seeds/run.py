"""The demo with a pretrained model for seeds 1, 2 and 3, each as a person would start it, and the harder row.

    python bench/record.py router_seeds -- python bench/router_seeds/run.py
    python bench/router_seeds/run.py [SEED ...] [--schemas SEED ...] [--keep FILE]

``--schemas``: the seeds of the harder row (``schemas.yaml``); none by default. ``--keep``: a file that gets
each run's last line as soon as it is there; runs that the file has are not made again. The last line is one
JSON object: one entry per run, and whether every run cleared the bars.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DEMO = "examples/router/demo.py"
CONFIGS = {"names": "examples/router/cpu.yaml", "schemas": "examples/router/schemas.yaml"}
GAIN = 0.20
"""The least difference of the reward after and before."""


def run(row: str, seed: int) -> dict[str, Any]:
    """Return the last line of one run of the demo."""
    command = [DEMO, "--config", CONFIGS[row], "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return {"row": row, "command": " ".join(["python", *command]), **line}


def kept(file: Path | None) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the runs that a file has, by row and seed."""
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    return {(one["row"], one["seed"]): one for one in map(json.loads, lines)}


def judged(runs: list[dict[str, Any]]) -> dict[str, bool]:
    """Return what holds for all runs of the main row: the gain, intervals that are apart, exact calls.

    ``ahead_of_baseline``: the difference on the same questions is positive beyond chance.
    ``clear_of_baseline``: more than that, the two intervals do not meet.
    """
    main = [one for one in runs if one["row"] == "names"]
    return {
        "gained": all(one["reward_after"] - one["reward_before"] >= GAIN for one in main),
        "intervals_apart": all(one["ci_before"][1] < one["ci_after"][0] for one in main),
        "ahead_of_baseline": all(one["ci_ahead"][0] > 0 for one in main),
        "clear_of_baseline": all(one["ci_baseline"][1] < one["ci_after"][0] for one in main),
        "calls_exact": all(one["calls"] == one["calls_exact"] for one in runs),
    }


def main() -> int:
    """Make the runs, print."""
    parser = argparse.ArgumentParser(description="The demo with a pretrained model for several seeds.")
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED", help="default: 1 2 3")
    parser.add_argument("--schemas", nargs="*", type=int, default=[], metavar="SEED")
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    known = kept(given.keep)
    runs = []
    for row, seeds in (("names", given.seeds or [1, 2, 3]), ("schemas", given.schemas)):
        for seed in seeds:
            one = known.get((row, seed)) or run(row, seed)
            runs.append(one)
            if given.keep and (row, seed) not in known:
                with given.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
    verdict = judged(runs)
    print(json.dumps({"runs": runs, **verdict}))
    return 0 if all(verdict.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
