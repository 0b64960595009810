"""Runs a folder of tests and prints how many passed, with versions of libraries, as one JSON line."""

from __future__ import annotations

import json
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


def run_counted(folder: str, *libraries: str) -> int:
    """Run the tests of ``folder``, all of them, and print the line; return 1 if one failed or none ran."""
    outcomes = Outcomes()
    status = pytest.main(["-q", "-m", "", f"--rootdir={ROOT}", str(ROOT / folder)], plugins=[outcomes])
    versions = {name: version(name) for name in libraries}
    print(json.dumps({"tests": outcomes.tests, "passed": outcomes.passed, **versions}))
    return int(status != 0 or outcomes.passed < outcomes.tests)
