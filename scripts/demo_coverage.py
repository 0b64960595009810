"""Says how much of core a small run uses: the share of statements in function bodies that three steps of the
agent of ``make demo`` execute, by room; the last line is JSON.

Code that a run of every day never enters is another distribution's, or dead.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src" / "agentlightning"
TRAIN = ("train", "--config", "examples/calc_x/cpu.yaml", "--set", "training.steps=3")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_STATEMENTS = (*FUNCTIONS, ast.ClassDef, ast.Nonlocal, ast.Global)


def body_lines(text: str) -> set[int]:
    """Return the first line of each statement in a function's body, docstrings left out."""
    return {
        statement.lineno
        for function in ast.walk(ast.parse(text))
        if isinstance(function, FUNCTIONS)
        for statement in ast.walk(function)
        if isinstance(statement, ast.stmt) and not isinstance(statement, NO_STATEMENTS)
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    }


def measured(folder: Path) -> dict[Path, set[int]]:
    """Train, and return the lines of core that ran."""
    data = folder / "coverage"
    command = [sys.executable, "-m", "coverage", "run", f"--source={CORE}", "-m", "agentlightning", *TRAIN]
    environment = {**os.environ, "COVERAGE_FILE": str(data)}
    output = ["--set", f"output={folder / 'runs'}"]
    subprocess.run([*command, *output], cwd=ROOT, env=environment, stdout=sys.stderr, check=True)
    found = CoverageData(str(data))
    found.read()
    return {Path(file): set(found.lines(file) or ()) for file in found.measured_files()}


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        ran = measured(Path(folder))
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted(CORE.rglob("*.py")):
        lines = body_lines(path.read_text(encoding="utf-8"))
        first = path.relative_to(CORE).parts[0]
        room = rooms["top level" if first.endswith(".py") else first]
        room[0] += len(lines & ran.get(path, set()))
        room[1] += len(lines)
    for name, (run, there) in sorted(rooms.items(), key=lambda one: -one[1][1]):
        print(f"{name:12} {run:6,} of {there:6,} statements  {run / there if there else 0:4.0%}")
    total = [sum(one[place] for one in rooms.values()) for place in (0, 1)]
    print(json.dumps({"statements": total[1], "run": total[0], "share": round(total[0] / total[1], 3)}))


if __name__ == "__main__":
    main()
