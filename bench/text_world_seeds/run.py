"""The demo of the text game for several seeds, each as a person would start it.

    python bench/text_world_seeds/run.py [SEED ...] [--write]

``--write`` keeps the figures in ``bench/results/text_world.json``, what each game earned in
``bench/results/per_task``, and draws ``bench/results/text_world.svg``; runs of other seeds that are there
stay. The last line is one JSON object: one entry per seed, and whether every seed ended clear of where it
began and of the baseline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("bench", "scripts", "examples")]

from per_task import keep  # noqa: E402
from pictures import svg  # noqa: E402
from record import RESULTS, machine  # noqa: E402

from text_world.baselines import COUNT, rewards, scripted_cook  # noqa: E402
from text_world.games import tasks  # noqa: E402

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


def picture(runs: list[dict[str, Any]], cook: float) -> str:
    """The reward of each seed before and after, and of two scripts. ``cook``: that of the cook."""
    left, width, parts, y = 150, 440, list[str](), 14
    bars = [(f"seed {one['seed']}, {when}", one[when], one[f"ci_{when}"], colour)
            for one in runs for when, colour in (("before", "#a3acb8"), ("after", "#3f51b5"))]  # fmt: skip
    for name, reward, (low, high), colour in bars:
        parts += [
            f'<text x="14" y="{y + 16}">{name}</text>',
            f'<rect x="{left}" y="{y}" width="{width * reward:.1f}" height="22" rx="4" fill="{colour}"/>',
            f'<path d="M{left + width * low:.1f} {y + 11}H{left + width * high:.1f}" stroke="#1c2430"/>',
            f'<text x="{left + width * high + 8:.1f}" y="{y + 16}">{reward:.3f}</text>',
        ]
        y += 30
    for name, reward in (("careful reader", runs[0]["baseline"]), ("cook", cook)):
        x = left + width * reward
        parts += [
            f'<path d="M{x:.1f} 8V{y}" stroke="#c98a00" stroke-dasharray="4 3"/>',
            f'<text class="dim" x="{x:.1f}" y="{y + 16}" text-anchor="middle">{name} {reward:.3f}</text>',
        ]
    about = "Share of held-out games won before and after training, with 95 % intervals, and by two scripts"
    return svg(680, y + 28, about, parts)


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
        cook = sum(rewards(scripted_cook, tasks("heldout", COUNT))) / COUNT
        (RESULTS / "text_world.svg").write_text(picture(runs, cook), encoding="utf-8")
        keep("text_world", CONFIG, (), [ROOT / "runs" / one["run_id"] for one in runs])
    print(json.dumps({"runs": runs, **judged(runs)}))
    return 0 if all(judged(runs).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
