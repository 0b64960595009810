"""Runs the tests of tests/faults.toml: one line for each fault that was found and mended.

    scripts/faults.py            all; the last line of stdout is {"faults", "mended", "left", "reason"}
    scripts/faults.py A1 B2      some

A fault is mended if each of its tests passes; a test that is skipped here, e.g. because its framework is not
installed, is run in the environment that the entry names (``environment = "latest"``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "faults.toml"


def read(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return fault → its entry: ``fault``, and ``tests`` or ``left``."""
    found: dict[str, dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))
    if unknown := [name for name in names if name not in found]:
        raise SystemExit(f"{LIST.name} has no {', '.join(unknown)}")
    return {name: found[name] for name in names or found}


def run(tests: list[str], environment: str) -> dict[str, Counter[str]]:
    """Run tests in an environment; return node id → outcomes of its cases."""
    python = sys.executable
    if environment:
        made = subprocess.run(
            [sys.executable, ROOT / "scripts" / "environment", environment],
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
        )
        python = made.stdout.split()[-1]
    pytest = [python, "-m", "pytest", "-q", "-m", ""]
    cases = run_cases(pytest, tests)
    if not cases:  # a name that is not there keeps all others from being run
        files = sorted(
            {test.partition("::")[0] for test in tests if (ROOT / test.partition("::")[0]).is_file()}
        )
        listed = subprocess.run(
            [*pytest, "--collect-only", *files],
            cwd=ROOT,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        known = [line for line in listed.stdout.splitlines() if "::" in line]
        there = [
            test
            for test in tests
            if any(line == test or line.startswith((f"{test}[", f"{test}::")) for line in known)
        ]
        cases = run_cases(pytest, there) if there else []
    return collect(tests, cases)


def run_cases(pytest: list[str], tests: list[str]) -> list[ElementTree.Element]:
    """Run tests; return the cases of pytest's report. Workers are worth their start where there are many."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        workers = ["-n", "2"] if len(tests) > 8 else []
        command = [*pytest, *workers, f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        subprocess.run([*command, *tests], cwd=ROOT, stdout=sys.stderr, check=False)
        return [*ElementTree.parse(report).iter("testcase")] if report.is_file() else []


def collect(tests: list[str], cases: Any) -> dict[str, Counter[str]]:
    """Return node id → outcomes of the cases that it stands for: those of a file, a function, or one case. A
    case is known by its dotted class, because a test that a class inherits has the file of the suite.
    """
    outcomes: dict[str, Counter[str]] = {test: Counter() for test in tests}
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        for test in tests:
            path, _, function = test.rpartition("::") if "::" in test else (test, "", "")
            place = path.replace(".py", "").replace("/", ".").replace("::", ".")
            mine = f"{place}::{function}"
            whole = not function and name.startswith((mine, f"{place}."))
            if name == mine or name.startswith(f"{mine}[") or whole:
                outcomes[test][outcome] += 1
    return outcomes


def main() -> int:
    """Run, print and count."""
    faults = read(sys.argv[1:])
    environments = {str(entry.get("environment", "")) for entry in faults.values() if "tests" in entry}
    outcomes: dict[str, Counter[str]] = {}
    for environment in sorted(environments):
        mine = [
            e["tests"] for e in faults.values() if "tests" in e and e.get("environment", "") == environment
        ]
        outcomes |= run(sorted({test for tests in mine for test in tests}), environment)
    mended, left, reasons = 0, [], {}
    for name, entry in faults.items():
        found = [outcomes[test] for test in entry.get("tests", [])]
        done = bool(found) and all(one["passed"] and not one["failed"] for one in found)
        mended += done
        if not done:
            left.append(name)
            reasons[name] = entry.get("left") or "a test fails, is skipped or is not there"
        mark = "✓" if done else "✗"
        print(f"{mark} {name:14} {entry['fault']}" + ("" if done else f" ({reasons[name]})"), file=sys.stderr)
    print(json.dumps({"faults": len(faults), "mended": mended, "left": left, "reason": reasons}))
    return any("left" not in faults[name] for name in left)


if __name__ == "__main__":
    raise SystemExit(main())
