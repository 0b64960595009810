"""Learning curves of every recipe on calc_x and a small werewolf game, with the same budget of rollouts.

    python bench/algorithms/run.py [--recipes "grpo rloo"] [--seeds "1 2 3"] [--tasks calc_x]

Each run (``one.py``) is a process of its own, forked from one that has imported everything. What a
finished run found is kept in the folder ``--keep`` (default ``runs/bench-algorithms``) and is not run again,
so that an interrupted comparison goes on where it was; what was kept with another budget is not counted.
``sft``, ``rejection`` and ``dpo`` learn from the rollouts that the run of ``grpo`` with the same task and
seed left in its store. ``--kept`` shows what finished runs there are, and runs nothing. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a process that forks must have no threads of torch
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentlightning.recipes import RECIPES
from algorithms.one import CONTROLS, STORED, TASKS, one, settings
from algorithms.summary import START, plot, summary, table

KEPT = Path(__file__).resolve().parents[2] / "runs" / "bench-algorithms"
SOURCE = "grpo"
"""The recipe whose stored rollouts the others learn from."""
RL = sorted(RECIPES)
"""Core's recipes; those of plugins need a driver that is no part of a run on a laptop."""
IMPORTED = ("agl_local.driver", "calc_x.agent", "werewolf.agent", "werewolf.players.scope")
"""What each run would import: seconds, which are spent once."""
Run = tuple[str, str, int]
"""Task, recipe, seed."""


def runs(tasks: Sequence[str], recipes: Sequence[str], seeds: Sequence[int]) -> list[list[Run]]:
    """The runs, task by task and seed by seed: those that collect, then those that learn from stored ones."""
    stages: list[list[Run]] = []
    for task in tasks:
        for seed in seeds:
            fresh = [r for r in recipes if r not in STORED]
            if any(r in STORED for r in recipes) and SOURCE not in fresh:
                fresh = [SOURCE, *fresh]
            fresh.sort(key=lambda recipe: recipe != SOURCE)
            stages.append([(task, r, seed) for r in (START, *fresh)])
            stages.append([(task, r, seed) for r in recipes if r in STORED])
    return [stage for stage in stages if stage]


class Kept:
    """The folder of finished runs: a file each, complete or not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, run: Run, ending: str = "json") -> Path:
        return self.folder / "{}-{}-{}.{}".format(*run, ending)

    def finished(self, run: Run) -> dict[str, Any] | None:
        """What a run found, if it is kept and had the present budget."""
        try:
            found: dict[str, Any] = json.loads(self.file(run).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found if found["settings"] == settings(run[0]) else None

    def write(self, run: Run, found: dict[str, Any]) -> None:
        passing = self.file(run, "part")
        passing.write_text(json.dumps(found) + "\n", encoding="utf-8")
        os.replace(passing, self.file(run))


def end_with_parent() -> None:
    """Leave when the command has ended, also by a signal: a run that nobody waits for must not go on."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def work(run: Run, folder: Path, stored: str | None) -> None:
    """Do one run in this process, which is forked for it; what it prints goes into a file of its own."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    kept = Kept(folder)
    with kept.file(run, "log").open("w", buffering=1, encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        kept.write(run, asyncio.run(one(*run, folder / "stores", stored)))


def execute(run: Run, kept: Kept, limit: float) -> str | None:
    """Do one run in a process of its own; return why it failed, if it did."""
    if kept.finished(run) is not None:
        return None
    stored = None
    if run[1] in STORED:
        source = kept.finished((run[0], SOURCE, run[2]))
        if source is None:
            return f"{SOURCE} with this task and seed did not finish"
        stored = source["folder"]
    began = time.monotonic()
    process = multiprocessing.get_context("forkserver").Process(target=work, args=(run, kept.folder, stored))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.kill()
        process.join()
        return f"not finished after {limit:g} s"
    found = kept.finished(run)
    if process.exitcode or found is None:
        lines = kept.file(run, "log").read_text(encoding="utf-8").strip().splitlines() or ["no message"]
        return f"ended with status {process.exitcode}: {lines[-1]}"
    task, recipe, seed = run
    took = time.monotonic() - began
    print(f"{task:9} {recipe:12} seed {seed}: {found['reward']:.3f} after {took:.0f} s", file=sys.stderr)
    return None


def compare(wanted: list[list[Run]], kept: Kept, asked: argparse.Namespace) -> dict[str, str]:
    """Do what is missing, ``asked.workers`` runs at a time; return why runs failed."""
    failed: dict[str, str] = {}
    for stage in wanted:
        with ThreadPoolExecutor(asked.workers) as pool:
            for run, why in zip(
                stage, pool.map(lambda run: execute(run, kept, asked.limit), stage), strict=True
            ):
                if why is not None:
                    failed["{} {} seed {}".format(*run)] = why
                    print(f"{run}: {why}", file=sys.stderr)
    return failed


def arguments() -> argparse.Namespace:
    """What is asked for, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipes", default="", help="default: all")
    parser.add_argument("--seeds", default="", help="default: 1 2 3")
    parser.add_argument("--tasks", default="", help=f"default: {' '.join(TASKS)}")
    parser.add_argument("--keep", type=Path, default=KEPT, help="folder of finished runs")
    parser.add_argument("--kept", action="store_true", help="run nothing: show what is kept")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which a run is given up")
    asked = parser.parse_args()
    known = {"recipes": [*RL, *CONTROLS, *STORED], "tasks": list(TASKS), "seeds": [1, 2, 3]}
    for name, choices in known.items():
        given = getattr(asked, name).split() or choices
        try:
            setattr(asked, name, [int(one) for one in given] if name == "seeds" else given)
        except ValueError:
            parser.error(f"--seeds: {' '.join(given)} are no whole numbers")
        if name != "seeds" and (unknown := sorted({*given} - {*map(str, choices)})):
            parser.error(f"--{name}: {unknown[0]!r} does not run here; known: {', '.join(map(str, choices))}")
    return asked


def main() -> int:
    """Do what is missing, then show all."""
    asked = arguments()
    kept = Kept(asked.keep.resolve())
    wanted = runs(asked.tasks, asked.recipes, asked.seeds)
    failed = {} if asked.kept else compare(wanted, kept, asked)
    found = [one for stage in wanted for run in stage if (one := kept.finished(run)) is not None]
    shown = [{k: v for k, v in one.items() if k not in ("folder", "settings")} for one in found]
    result = {
        "recipes": summary(found),
        "wanted": sum(map(len, wanted)),
        "finished": len(found),
        "failed": failed,
        "budgets": {task: settings(task) for task in asked.tasks},
        "runs": shown,
    }
    print(table(result["recipes"]), file=sys.stderr)
    (kept.folder / "algorithms.svg").write_text(plot(result["recipes"]), encoding="utf-8")
    print(f"picture: {kept.folder / 'algorithms.svg'}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if failed or not found else 0


if __name__ in ("__main__", "__mp_main__") and "--kept" not in sys.argv:
    for module in IMPORTED:
        importlib.import_module(module)
if __name__ == "__main__":
    sys.exit(main())
