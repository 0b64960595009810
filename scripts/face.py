"""Show which promises are kept: ``make test-face``. The last line is JSON.

``tests/face/promises.toml`` names the tests of each promise, ``tests/face/v03_names.toml`` the tests of each
name of Agent Lightning 0.3. A promise is kept if its tests exist, all pass, none is skipped, and the document
says what it should. Exit status 1 if a promise is broken or a name does not resolve.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Outcomes:
    """A plugin of pytest that keeps the outcomes of each test."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what became of a test, and of its set-up where that ended it."""
        if report.when == "call" or report.outcome != "passed":
            outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
            self.found.setdefault(report.nodeid, []).append(outcome)

    def passed(self, test: str) -> bool:
        """Whether ``test``, a file or a test with all its parameters, ran and passed."""
        mine = [
            o for name, o in self.found.items() if name == test or name.startswith((f"{test}[", f"{test}::"))
        ]
        return bool(mine) and all(set(outcomes) == {"passed"} for outcomes in mine)


def promises() -> dict[str, dict[str, Any]]:
    """Return id → ``says``, ``tests``, ``docs``."""
    return tomllib.loads((ROOT / "tests/face/promises.toml").read_text(encoding="utf-8"))


def names() -> dict[str, str]:
    """Return name of v0.3 → its test."""
    tests = tomllib.loads((ROOT / "tests/face/v03_names.toml").read_text(encoding="utf-8"))
    return {name: test for test, listed in tests.items() for name in listed.split()}


def documented(promise: dict[str, Any]) -> bool:
    """Whether the document says the words that the promise names."""
    page, _, words = promise["docs"].partition(": ")
    return (ROOT / page).is_file() and words in (ROOT / page).read_text(encoding="utf-8")


def main() -> int:
    """Run the tests, print a line for each promise and each name, then the summary."""
    given, former, outcomes = promises(), names(), Outcomes()
    wanted = sorted({*former.values(), *(test for one in given.values() for test in one["tests"])})
    files = {test for test in wanted if "::" not in test}
    chosen = [test for test in wanted if test in files or test.partition("::")[0] not in files]
    sys.path.insert(0, str(ROOT))  # as `python -m pytest` does: workers of a test import it by its name
    pytest.main(["-q", "-p", "no:randomly", "-m", "", f"--rootdir={ROOT}", *chosen], plugins=[outcomes])
    kept = 0
    for key, one in given.items():
        broken = [test for test in one["tests"] if not outcomes.passed(test)]
        broken += [] if documented(one) else [f"not in {one['docs']}"]
        kept += not broken
        print(f"{'kept  ' if not broken else 'BROKEN'} {key} {one['says']}", *broken, sep="\n         ")
    resolved = [name for name, test in former.items() if outcomes.passed(test)]
    for name in former.keys() - set(resolved):
        print(f"NOT RESOLVED {name}: {former[name]}")
    summary = {
        "promises": len(given), "kept": kept, "v03_names": len(former), "v03_resolved": len(resolved),
    }  # fmt: skip
    print(json.dumps(summary))
    return int(kept < len(given) or len(resolved) < len(former))


if __name__ == "__main__":
    sys.exit(main())
