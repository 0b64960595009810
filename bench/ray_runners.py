"""Runners as actors of a Ray cluster: ``make test-ray``. The last line is JSON."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Outcomes:
    """A plugin of pytest that counts tests."""

    def __init__(self) -> None:
        self.tests = self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that ran, and one whose set-up failed."""
        if report.when == "call" or report.failed:
            self.tests += 1
            self.passed += report.passed


def main() -> int:
    """Run the tests and count them."""
    outcomes = Outcomes()
    where = str(ROOT / "tests/plugins/ray")
    status = pytest.main(["-q", "-m", "", f"--rootdir={ROOT}", where], plugins=[outcomes])
    names = {name: version(name) for name in ("ray",)}
    print(json.dumps({"tests": outcomes.tests, "passed": outcomes.passed, **names}))
    return int(status != 0 or outcomes.passed < outcomes.tests)


if __name__ == "__main__":
    sys.exit(main())
