"""What capture costs: CPU microseconds added per model call, by the wire layer and by each adapter.

    python bench/capture_overhead/run.py                        # all frameworks, each in .venvs/NAME
    python bench/capture_overhead/run.py --only openai autogen --rounds 20
    python bench/capture_overhead/run.py --python crewai=/some/venv/bin/python

Each framework's agent (``frameworks.py``) answers a task with one tool call, two model calls a run, in a
process of its own (``child.py``), with capture off and on in short interleaved batches, against answers
that are made beforehand and come without a network (``canned.py``). *call* is what the framework and the
openai SDK spend on a call without capture, *ids* the SDK's part of it that reads token ids and logprobs;
*wire* and *adapter* are what these add. A small call has 300 + 20 tokens, a large one 32,000 + 1,000.
Medians over the rounds, ± half the width of the middle half of the rounds. Figures are of use on a machine
that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from frameworks import CASES
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def interpreter(name: str, given: dict[str, str]) -> Path:
    """The Python in which a framework is installed; the error says how to make it."""
    environment = CASES[name].environment
    chosen = given.get(name) or given.get(environment)
    python = Path(chosen) if chosen else ROOT / ".venvs" / environment / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{name}: no {python}; make it with scripts/environment {environment}")
    return python


def measured(name: str, python: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """One framework's figures."""
    command = [str(python), str(HERE / "child.py"), name, str(rounds), str(seconds)]
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("AGL_", "OPENAI_", "OTEL_"))
    }
    done = subprocess.run(command, env=clean, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name}: the measurement failed in {python} (its errors are above)")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def table(found: dict[str, dict[str, Any]]) -> Table:
    """The figures as a table."""
    made = Table(title="CPU microseconds per model call")
    for heading in ("framework", "version", "openai"):
        made.add_column(heading, no_wrap=True)
    for heading in ("call", "ids", "wire", "adapter", "call 32k", "ids 32k", "wire 32k", "adapter 32k"):
        made.add_column(heading, justify="right", no_wrap=True)
    for name, one in found.items():
        cells = [name, one["version"], one["openai"]]
        for size in ("", "_32k"):
            cells.append(f"{one[f'call_us{size}']:,}")
            for layer in ("ids", "wire", "adapter"):
                low, high = one[f"{layer}_us{size}_middle_half"]
                cells.append(f"{one[f'{layer}_us{size}']:,} ±{(high - low) // 2:,}")
        made.add_row(*cells)
    return made


def main() -> int:
    """Measure, show, print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES), metavar="FRAMEWORK")
    parser.add_argument("--rounds", type=int, default=100, help="interleaved batches of each kind")
    parser.add_argument("--seconds", type=float, default=0.05, help="CPU seconds of a batch")
    parser.add_argument(
        "--python", nargs="+", default=[], metavar="NAME=PATH", help="of a framework or environment"
    )
    given = parser.parse_args()
    pythons = dict(item.split("=", 1) for item in given.python)
    chosen = {name: interpreter(name, pythons) for name in given.only}  # before the first minutes are spent
    found = {}
    for name, python in chosen.items():
        print(f"measuring {name}", file=sys.stderr)
        found[name] = measured(name, python, given.rounds, given.seconds)
    Console(stderr=True, width=None if sys.stderr.isatty() else 140).print(table(found))
    print(json.dumps({"rounds": given.rounds, "frameworks": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
