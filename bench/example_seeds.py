"""The demo of an example with a small policy for seeds, each as a person would start it, and its picture.

    python bench/record.py desk_seeds -- python bench/example_seeds.py desk [SEED ...]       (default: 1 2 3)
    python bench/example_seeds.py desk --draw       # bench/results/desk_seeds.json as bench/results/desk.svg

What each held-out task earned goes to ``bench/results/per_task``. The last line is one JSON object: one entry
for each seed, with the mean reward of each step's rollouts, and whether all runs ended clear of their start
and, task by task, of the script in ``baseline``. The exit status is 1 if not, or if a call was not captured
exactly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from per_task import keep
from record import RESULTS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ("desk", "search", "text_world")


def train(example: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the last line of a run of the demo with its curve. ``folder``: where the run is put."""
    command = [f"examples/{example}/demo.py", "--seed", str(seed)]
    given = [*command, "--set", f"output={folder}"]
    done = subprocess.run(
        [sys.executable, *given], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    line = json.loads(done.stdout.strip().splitlines()[-1])
    steps = (run_in(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    curve = [round(json.loads(one)["metrics"]["reward_mean"], 4) for one in steps]
    return {"command": " ".join(["python", *command]), "seed": seed, **line, "curve": curve}


def run_in(folder: Path) -> Path:
    """Return the folder of the only run under ``folder``."""
    (found,) = folder.iterdir()
    return found


def judged(runs: Sequence[dict[str, Any]]) -> dict[str, bool]:
    """Return what holds for all runs."""
    return {
        "clear_of_before": all(one["ci_before"][1] < one["ci_after"][0] for one in runs),
        "clear_of_baseline": all(one["ci_ahead"] is not None and one["ci_ahead"][0] > 0 for one in runs),
        "calls_exact": all(one["calls"] == one["calls_exact"] for one in runs),
    }


def drawn(runs: Sequence[dict[str, Any]]) -> Any:
    """Return the figure: the mean reward of each step's rollouts, and held-out rewards at both ends with
    their intervals, beside the script.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "agl"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.4))
    for place, one in enumerate(runs):
        steps, colour = len(one["curve"]), f"C{place}"
        axes.plot(range(1, steps + 1), one["curve"], color=colour, linewidth=1.2, label=f"seed {one['seed']}")
        for step, when in ((0, "before"), (steps, "after")):
            low, high = one[f"ci_{when}"]
            ends = [[one[when] - low], [high - one[when]]]
            axes.errorbar(step + place / 4, one[when], yerr=ends, fmt="o", color=colour, markersize=4)
    axes.axhline(runs[0]["baseline"], color="grey", linestyle="--", label="the best script in its place")
    axes.set(ylim=(0, 1.03), xlabel="step", ylabel="sampled (lines), held out (dots)")
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    return figure


def main() -> int:
    """Make the runs and print, or draw what is kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED")
    parser.add_argument("--draw", action="store_true", help="draw what bench/record.py has kept")
    given = parser.parse_args()
    if given.draw:
        kept = json.loads((RESULTS / f"{given.example}_seeds.json").read_text(encoding="utf-8"))["result"]
        drawn(kept["runs"]).savefig(RESULTS / f"{given.example}.svg", metadata={"Date": None})
        return 0
    with tempfile.TemporaryDirectory() as name:
        folders = {seed: Path(name) / str(seed) for seed in given.seeds or (1, 2, 3)}
        runs = [train(given.example, seed, folder) for seed, folder in folders.items()]
        config = f"examples/{given.example}/cpu.yaml"
        keep(given.example, config, (), [run_in(folder) for folder in folders.values()])
    verdict = judged(runs)
    print(json.dumps({"runs": runs, **verdict}))
    return 0 if all(verdict.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
