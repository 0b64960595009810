"""`make test-postgres`: tests of the store in PostgreSQL, and its kill -9 drill, on servers of their own.

The last line is one JSON object: ``tests`` and ``passed`` (a test that is skipped has not passed), and of the
drill (`tests/drills/postgres.py`) ``kills``, ``lost``, ``doubled`` and ``double_leases``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
SUMMED = ("kills", "lost", "doubled", "double_leases")


def tested(words: list[str]) -> tuple[int, int]:
    """Run the tests; return how many there are, and how many passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", f"--junitxml={report}", *words]
        subprocess.run([*command, "plugins/postgres/tests"], cwd=ROOT, stdout=sys.stderr)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    tests, wrong = int(suite.get("tests", 0)), ("errors", "failures", "skipped")
    return tests, tests - sum(int(suite.get(name, 0)) for name in wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("words", nargs="*", help="more for pytest")
    given = parser.parse_args()
    from drills.postgres import drill

    tests, passed = tested(given.words)
    found = drill(given.kills, given.seed)
    result = {"tests": tests, "passed": passed, **{name: found[name] for name in SUMMED}}
    more = {name: value for name, value in found.items() if name not in result}
    print(json.dumps({**result, **more}), flush=True)
    failed = passed < tests or not tests or found["worthless"]
    return int(bool(failed or any(found[name] for name in SUMMED[1:])))


if __name__ == "__main__":
    raise SystemExit(main())
