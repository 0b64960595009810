"""What `make test-adapters` reads: a line of JSON per test, with its cells and its calls.

    PYTHONPATH=tests python -m pytest -p contract.report --contract-report FILE tests/adapters

The lines are written where the results come together, so several workers are no matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agl_testing.contract.features import LACKS, features_of
from contract.frameworks import folder_of

KEY = "contract"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the lines go."""
    parser.addoption("--contract-report", type=Path, default=None, help="write a line of JSON per test")


def pytest_configure(config: pytest.Config) -> None:
    """The process in which the results come together writes them."""
    path = config.getoption("--contract-report")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Lines(path), "contract-lines")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Cells travel with the result of the test, also out of a worker."""
    folder = folder_of(item.path)
    item.user_properties.append((KEY, {"folder": folder, "features": features_of(item)}))


class Lines:
    """Writes a line when a test is over. A test is what the worst of its phases is."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._open: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over."""
        line = self._open.setdefault(report.nodeid, {"test": report.nodeid, "outcome": "passed"})
        for key, value in report.user_properties:
            if key == KEY:
                line.update(value)
        if report.when == "call" or report.outcome != "passed":
            line["outcome"] = self._outcome(line["outcome"], report)
            line["why"] = _why(report)
        line["seconds"] = round(line.get("seconds", 0.0) + report.duration, 3)
        if report.when == "teardown":
            self._file.write(json.dumps(self._open.pop(report.nodeid)) + "\n")
            self._file.flush()

    @staticmethod
    def _outcome(before: str, report: pytest.TestReport) -> str:
        if before == "failed" or report.outcome == "failed":
            return "failed"
        if report.outcome == "skipped":
            if hasattr(report, "wasxfail"):
                return "excused"
            return "lacks" if LACKS in _why(report) else "skipped"
        return before

    def pytest_unconfigure(self) -> None:
        """The run is over."""
        self._file.close()


def _why(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    return "" if report.outcome == "passed" else str(report.longrepr)[-2000:]
