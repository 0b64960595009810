"""The service desk's demo for seeds, each as a person would start it, and its picture.

    python bench/record.py desk_seeds -- python bench/desk_seeds/run.py [SEED ...]         (default: 1 2 3)
    python bench/desk_seeds/run.py --draw        # bench/results/desk_seeds.json as bench/results/desk.svg

What each held-out task earned goes to ``bench/results/per_task``. The last line is one JSON object: one entry
per seed with the mean reward of each step's rollouts, and whether every run ended clear of its start and of
the best script that has a part of the policy.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from per_task import keep
from record import RESULTS

ROOT = Path(__file__).resolve().parents[2]
DEMO, CONFIG = "examples/desk/demo.py", "examples/desk/cpu.yaml"
COLOURS = ("#1f6feb", "#bf8700", "#1a7f37")
WIDTH, LEFT, TOP, HEIGHT, RIGHT, GREY = 700, 46, 40, 220, 90, "#57606a"


def train(seed: int, folder: Path) -> dict[str, Any]:
    """Return the last line of a run of the demo with its curve. ``folder``: where the run is put."""
    command = [DEMO, "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, *command, "--set", f"output={folder}"],
        cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True,
    )  # fmt: skip
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
        "clear_of_baseline": all(one["baseline"] < one["ci_after"][0] for one in runs),
        "calls_exact": all(one["calls"] == one["calls_exact"] for one in runs),
    }


def drawing(runs: Sequence[dict[str, Any]]) -> str:
    """Return the picture as SVG: the mean reward of each step's rollouts, and held-out rewards at both ends
    with their intervals, beside the best script that has a part of the policy.
    """
    right, steps = WIDTH - RIGHT, max(len(one["curve"]) for one in runs)

    def at(step: float, value: float) -> tuple[float, float]:
        return LEFT + (right - LEFT) * step / steps, TOP + HEIGHT * (1 - value)

    title = "reward: sampled rollouts of each step (lines), held-out tasks, greedy (dots, 95 %)"
    parts = [text(LEFT, 20, title, 'font-weight="600"')]
    for value in (0, 0.25, 0.5, 0.75, 1):
        _, y = at(0, value)
        parts += [
            line((LEFT, y), (right, y), "#eaeef2"),
            text(LEFT - 6, y + 4, f"{value:g}", 'text-anchor="end"'),
        ]
    for step in range(0, steps + 1, 10):
        x, y = at(step, 0)
        parts.append(text(x, y + 18, f"step {step}" if step else "0", 'text-anchor="middle"'))
    _, y = at(0, runs[0]["baseline"])
    parts += [
        line((LEFT, y), (right, y), GREY, 'stroke-dasharray="4 4"'),
        text(right + 6, y + 4, f"{runs[0]['baseline']:.3f}"),
        text(right, TOP + HEIGHT + 40, "dashed: best script with a part of the rules", 'text-anchor="end"'),
    ]
    for number, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(i + 1, v) for i, v in enumerate(run["curve"])))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for step, when in ((0, "before"), (steps, "after")):
            x, y = at(step, run[when])
            shift = 4 * number
            ends = [at(step, end)[1] for end in run[f"ci_{when}"]]
            parts.append(line((x + shift, ends[0]), (x + shift, ends[1]), colour))
            parts.append(f'<circle cx="{x + shift:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        parts.append(
            text(LEFT + 110 * number, TOP + HEIGHT + 40, f"seed {run['seed']}", f'style="fill:{colour}"')
        )
    size = f'viewBox="0 0 {WIDTH} {TOP + HEIGHT + 52}"'
    ground = f'<rect width="{WIDTH}" height="{TOP + HEIGHT + 52}" fill="white"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, ground, *parts, "</svg>", ""])


def text(x: float, y: float, content: str, more: str = "") -> str:
    """Return a text of the picture."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{GREY}" {more}>{content}</text>'


def line(start: tuple[float, float], end: tuple[float, float], colour: str, more: str = "") -> str:
    """Return a line of the picture."""
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="{colour}" {more}/>'


def main() -> int:
    """Make the runs and print, or draw what is kept."""
    parser = argparse.ArgumentParser(description="The service desk's demo for seeds.")
    parser.add_argument("seeds", nargs="*", type=int, metavar="SEED")
    parser.add_argument("--draw", action="store_true", help="draw bench/results/desk_seeds.json")
    given = parser.parse_args()
    if given.draw:
        kept = json.loads((RESULTS / "desk_seeds.json").read_text(encoding="utf-8"))["result"]
        (RESULTS / "desk.svg").write_text(drawing(kept["runs"]), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folders = {seed: Path(name) / str(seed) for seed in given.seeds or (1, 2, 3)}
        runs = [train(seed, folder) for seed, folder in folders.items()]
        keep("desk", CONFIG, (), [run_in(folder) for folder in folders.values()])
    verdict = judged(runs)
    print(json.dumps({"runs": runs, **verdict}))
    return 0 if all(verdict.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
