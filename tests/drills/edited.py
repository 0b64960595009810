"""Tamper drill: a run verifies; a copy of it in which one thing was edited does not, and that thing is named.

`make drill-verify` takes the demo's newest finished run in `runs/` (run `make demo` first), else the newest
of any agent, or the folder given. The run itself is not touched: each edit (`tests/drills/edits.py`) is made
to a fresh copy. The last line is one JSON object: ``edits``, ``named`` (verify said that something differs),
``named_right`` (what it said is that thing, and nothing else but what follows from it), and ``equal`` (the
run as it is verifies).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from drills.edits import EDITS, KEY, NotHere, says

from agl_audit.run import open_run
from agl_audit.verification.verify import Verification, verify

ROOT = Path(__file__).parents[2]
AGL = str(Path(sys.executable).with_name("agl"))


def newest(runs: Path) -> Path:
    """The demo's newest finished run with a store of its own; of any agent, where the demo has none: a game
    of many players is a hundred times as large, and shows nothing more.
    """
    found = [p.parent for p in runs.glob("*/summary.json") if (p.parent / "store.sqlite").exists()]
    if not found:
        raise SystemExit(f"no finished run in {runs}: run `make demo` first, or name a run's folder")
    found = [folder for folder in found if "-calc_x-s" in folder.name] or found
    return max(found, key=lambda p: (p / "summary.json").stat().st_mtime)


def by_command(folder: Path) -> dict[str, Any]:
    """What `agl verify --json` says of a run's folder, from another working directory."""
    done = subprocess.run(
        [AGL, "verify", str(folder.resolve()), "--json"], stdout=subprocess.PIPE, text=True, cwd="/"
    )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert done.returncode == (0 if result["equal"] else 1), done.returncode
    return result


async def _verified(folder: Path, key: str | None, head: str | None) -> Verification:
    async with open_run(str(folder)) as run:
        return await verify(run, key=key, head=head)


def attempt(run: Path, seed: int, name: str) -> dict[str, Any]:
    """One edit on a copy of the run, and what verify says of it."""
    os.environ.pop("AGL_SIGNING_KEY", None)
    with tempfile.TemporaryDirectory(prefix="agl-edited-") as base:
        copy = Path(shutil.copytree(run, Path(base) / run.name))
        try:
            expected = EDITS[name](copy, random.Random(f"{seed} {name}"))
        except NotHere as why:
            return {"edit": name, "left_out": str(why)}
        result = asyncio.run(_verified(copy, KEY if expected.keyed else None, expected.head))
    roots = [d for d in result.differences if d.kind != "consequence"]
    return {
        "edit": name,
        "named": not result.equal and bool(roots),
        "named_right": bool(roots) and any(says(d, expected) for d in roots)
        and all(says(d, expected) or d.kind in expected.also for d in roots),
        "said": [d.text for d in result.differences[:4]],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, help="a run's folder; default: the newest in runs/")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="edits whose name contains this")
    arguments = parser.parse_args()
    run = arguments.run or newest(ROOT / "runs")
    whole = by_command(run)
    if not whole["links"]:
        raise SystemExit(f"{run} has no chain: it was trained by an older version; run `make demo` first")
    names = [name for name in EDITS if arguments.only is None or arguments.only in name]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1), mp_context=spawn) as pool:
        found = []
        for one in pool.map(partial(attempt, run, arguments.seed), names):
            found.append(one)
            print(_line(one), file=sys.stderr, flush=True)
    done = [one for one in found if "left_out" not in one]
    result = {
        "run": run.name,
        "equal": whole["equal"],
        "edits": len(done),
        "named": sum(one["named"] for one in done),
        "named_right": sum(one["named_right"] for one in done),
        "left_out": [one["edit"] for one in found if "left_out" in one],
    }
    print(json.dumps(result))
    return 0 if result["equal"] and result["edits"] == result["named"] == result["named_right"] else 1


def _line(one: dict[str, Any]) -> str:
    if "left_out" in one:
        return f"–  {one['edit']}: left out ({one['left_out']})"
    return f"{'✓' if one['named_right'] else '✗'}  {one['edit']}: {' | '.join(one['said'])}"


if __name__ == "__main__":
    raise SystemExit(main())
