"""Learning curves of every recipe on calc_x and the small werewolf game, with the same budget of rollouts.

    python bench/algorithms/run.py [--recipes "grpo rloo"] [--seeds "1 2 3"] [--tasks calc_x] [--write]

Each run is a process of its own (``one.py``), two at a time; what a finished run printed is kept in
``runs/bench-algorithms``, and is not run again. ``sft``, ``rejection`` and ``dpo`` learn from the rollouts
that the run of ``grpo`` with the same task and seed left in its store. ``--write`` keeps the figures in
``bench/results/algorithms.json``, and the plot in ``docs/images/algorithms.svg``; ``--kept`` shows what
finished runs there are, and runs nothing. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from record import RESULTS, machine

from agentlightning.recipes import RECIPES
from algorithms.summary import plot, summary, table

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[2]
KEPT = ROOT / "runs" / "bench-algorithms"
TASKS = ("calc_x", "werewolf")
STORED = ("sft", "rejection", "dpo")
SOURCE = "grpo"
"""The recipe whose stored rollouts the others learn from."""
RL = [name for name, factory in sorted(RECIPES.items()) if not factory().critic]
"""A critic needs verl, which is no part of a run on a laptop."""
Run = tuple[str, str, int]
"""Task, recipe, seed."""


def runs(tasks: Sequence[str], recipes: Sequence[str], seeds: Sequence[int]) -> list[list[Run]]:
    """The runs in order, seed by seed: those that collect, then those that learn from what is stored."""
    stages: list[list[Run]] = []
    for seed in seeds:
        for task in tasks:
            fresh = [r for r in recipes if r not in STORED]
            if any(r in STORED for r in recipes) and SOURCE not in fresh:
                fresh = [SOURCE, *fresh]
            fresh.sort(key=lambda recipe: recipe != SOURCE)
            stages += [[(task, r, seed) for r in fresh], [(task, r, seed) for r in recipes if r in STORED]]
    return [stage for stage in stages if stage]


def finished(run: Run) -> dict[str, Any] | None:
    """What a run printed, if it is kept."""
    file = _file(run)
    return json.loads(file.read_text()) if file.exists() else None


def _file(run: Run) -> Path:
    return KEPT / "{}-{}-{}.json".format(*run)


def _shown(run: dict[str, Any]) -> dict[str, Any]:
    """A run for the committed results, without the place of its store."""
    return {name: value for name, value in run.items() if name != "folder"}


def execute(run: Run) -> str | None:
    """Do one run and keep its result; return why it failed, if it did."""
    if finished(run) is not None:
        return None
    task, recipe, seed = run
    command = [sys.executable, str(HERE / "one.py"), "--task", task, "--recipe", recipe, "--seed", str(seed),
               "--output", str(KEPT / "stores"), "--keep", str(_file(run))]  # fmt: skip
    if recipe in STORED:
        source = finished((task, SOURCE, seed))
        if source is None:
            return f"{SOURCE} with this task and seed did not finish"
        command += ["--stored", source["folder"]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    print(
        f"{task:9} {recipe:12} seed {seed}: {result['before']:.3f} → {result['after']:.3f}", file=sys.stderr
    )
    return None


def main() -> int:
    """Do what is missing, then show all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipes", default="", help="default: all")
    parser.add_argument("--seeds", default="", help="default: 1 2 3")
    parser.add_argument("--tasks", default="", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--write", action="store_true", help="keep table and plot")
    parser.add_argument("--kept", action="store_true", help="run nothing: show what is kept")
    asked = parser.parse_args()
    recipes = asked.recipes.split() or [*RL, *STORED]
    if unknown := sorted({*recipes} - {*RL, *STORED}):
        parser.error(f"no recipe {unknown[0]!r} runs here; known: {', '.join([*RL, *STORED])}")
    tasks, seeds = asked.tasks.split() or list(TASKS), [int(s) for s in asked.seeds.split() or (1, 2, 3)]
    KEPT.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    wanted = runs(tasks, recipes, seeds)
    for stage in [] if asked.kept else wanted:
        with ThreadPoolExecutor(2) as pool:
            for run, why in zip(stage, pool.map(execute, stage), strict=True):
                if why is not None:
                    failed["{} {} seed {}".format(*run)] = why
                    print(f"{run}: {why}", file=sys.stderr)
    kept = [found for stage in wanted for run in stage if (found := finished(run)) is not None]
    result = {"recipes": summary(kept), "runs": len(kept), "failed": failed}
    print(table(result["recipes"]), file=sys.stderr)
    if asked.write:
        RESULTS.joinpath("algorithms.json").write_text(
            json.dumps({**result, "runs": [_shown(run) for run in kept], "machine": machine()}, indent=2)
            + "\n"
        )
        (ROOT / "docs" / "images" / "algorithms.svg").write_text(plot(kept))
    print(json.dumps(result))
    return 1 if failed or not kept else 0


if __name__ == "__main__":
    sys.exit(main())
