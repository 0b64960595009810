"""Programs that import nothing of ours, trained as they are: in Python, Perl and JavaScript.

    python bench/trained_commands.py [PROGRAM …] [--write]        (or: make test-command)

Each is trained on CPU by its file in ``examples``, from the quickstarts' policy. Where Node is missing, the
program in JavaScript is left out unless it is asked for, and ``skipped`` says why. The last line is one JSON
object: per program its held-out reward before and after (greedy) with their 95 % intervals, and the calls
that training made and captured exactly. ``--write`` keeps it in ``bench/results/commands.json``, beside what
is there of the programs that were not run, if no run failed. Exit status 1 if a run fails, the intervals
overlap, or a call is not exact.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from each import add_names, each
from record import RESULTS, machine

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "perl": "commands/perl.yaml",
    "http": "commands/http.yaml",
    "openai": "commands/openai.yaml",
    "node": "node_programs/solver.yaml",
}
"""Program → its file in ``examples``."""


def train(name: str) -> dict[str, Any]:
    """Train one program; what its run says. CalledProcessError if it fails."""
    if name == "node":
        subprocess.run([str(ROOT / "scripts" / "node_clients")], stdout=sys.stderr, check=True)
    begin = time.perf_counter()
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    agl = str(Path(sys.executable).parent / "agl")
    made = subprocess.run(
        [agl, "train", "--config", f"examples/{PROGRAMS[name]}"],
        cwd=ROOT,
        env={**os.environ, "PATH": folders},
        stdout=subprocess.PIPE,
        check=True,
    )
    summary = json.loads(made.stdout.decode().splitlines()[-1])
    return {
        "before": summary["reward_before"],
        "after": summary["reward_after"],
        "calls": int(summary["calls"]),
        "exact": int(summary["calls_exact"]),
        "ci_before": summary["ci_before"],
        "ci_after": summary["ci_after"],
        "seconds": round(time.perf_counter() - begin, 1),
    }


def better(one: Mapping[str, Any]) -> bool:
    """Whether the program got better beyond chance: the intervals of before and after are apart."""
    return bool(one["ci_before"][1] < one["ci_after"][0])


def sound(one: Mapping[str, Any]) -> bool:
    """Whether the program got better beyond chance, and every call was captured exactly."""
    return better(one) and 0 < one["calls"] == one["exact"]


def kept(results: Mapping[str, Mapping[str, Any]], record: Path) -> dict[str, Any]:
    """The figures beside those that ``record`` has of programs that were not run."""
    before = json.loads(record.read_text(encoding="utf-8"))["result"]["programs"] if record.exists() else {}
    found = {**before, **results}
    return {
        "command": "python bench/trained_commands.py --write",
        "machine": machine(),
        "result": {
            "programs": {name: found[name] for name in PROGRAMS if name in found},
            "failed": [],
            "not_better_or_not_exact": [name for name, one in found.items() if not sound(one)],
        },
    }


def main() -> int:
    """Train the programs asked for (default: all), print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Train programs that import nothing of ours.")
    add_names(parser, "programs", PROGRAMS)
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    given = parser.parse_args()
    skipped = {} if given.programs or shutil.which("npm") else {"node": "Node 20 or later is not installed"}
    asked = given.programs or [name for name in PROGRAMS if name not in skipped]
    results, failed = each(asked, train)
    unsound = [name for name, one in results.items() if not sound(one)]
    told = {"programs": results, "failed": failed, "not_better_or_not_exact": unsound, "skipped": skipped}
    if given.write and not failed:
        record = RESULTS / "commands.json"
        record.write_text(json.dumps(kept(results, record), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(told))
    return 1 if failed or unsound else 0


if __name__ == "__main__":
    sys.exit(main())
