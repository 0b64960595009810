"""The contract's own machinery: what is not compared fails, what is excused must fail, all of it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agl_testing.contract.features import feature
from contract.excuses import EXCUSES
from contract.frameworks import FRAMEWORKS

ROOT = Path(__file__).parents[2]
SUITE = """
import contract.excuses as excuses
import pytest
from agl_testing.contract.features import STREAM, feature, lacking
from agl_testing.contract import AdapterHooks
from agl_testing.contract.tally import TALLY

excuses.EXCUSES = (
    excuses.Excuse("openai_sdk", ">=1", "test_excused", "upstream says so"),
    excuses.Excuse("openai_sdk", ">=1", "test_idle_excuse", "upstream mended it"),
    excuses.Excuse("openai_sdk", "<1", "test_plain", "an older version's"),
)

class Switch:
    is_instrumented_by_opentelemetry = False
    def instrument(self, **kwargs): pass

class TestIt(AdapterHooks):
    def instrumentor(self): return Switch()
    def client(self, url, key): pass
    async def tool_agent(self, client, task, tool, stream): pass
    async def team(self, client, task, stream): pass
    async def close(self, client): pass
    def patched(self): return []
    def excuse(self, test):
        found = excuses.excuse_of(test)
        return found and found.reason

    @STREAM
    @feature("tools")
    def test_plain(self, stream): TALLY.elsewhere(made=2, exact=2)

    def test_left(self): TALLY.elsewhere(made=2, exact=1)

    @feature("sync")
    def test_lacking(self): lacking("a blocking face")

    @feature("retries")
    def test_excused(self):
        TALLY.elsewhere(made=3, exact=1)
        assert False

    def test_idle_excuse(self): pass

    def test_fails(self): assert False

    def test_skips(self): pytest.skip("for some other reason")
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a run of the suite above reports, by test."""
    folder = tmp_path_factory.mktemp("suite") / "openai_sdk"
    folder.mkdir()
    (folder / "test_it.py").write_text(SUITE)
    report = folder / "report.jsonl"
    given = ["-p", "contract.report", "--contract-report", str(report), "-p", "no:cacheprovider"]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), *given, str(folder)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdout=subprocess.DEVNULL,
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    return {line["test"].rpartition("::")[2]: line for line in lines}


def test_outcomes(told: dict[str, dict[str, Any]]) -> None:
    assert {name: line["outcome"] for name, line in told.items()} == {
        "test_plain[whole]": "passed",
        "test_plain[stream]": "passed",
        "test_left": "failed",
        "test_lacking": "lacks",
        "test_excused": "excused",
        "test_idle_excuse": "failed",
        "test_fails": "failed",
        "test_skips": "skipped",
    }


def test_cells_and_calls_are_told(told: dict[str, dict[str, Any]]) -> None:
    assert told["test_plain[whole]"]["features"] == ["tools"]
    assert told["test_plain[stream]"]["features"] == ["stream", "tools"]
    assert told["test_excused"]["features"] == ["retries"]
    assert (told["test_left"]["made"], told["test_left"]["exact"]) == (2, 1)
    assert (told["test_excused"]["made"], told["test_excused"]["exact"]) == (3, 1)
    assert "1 of 2 calls were not compared" in told["test_left"]["why"]
    assert told["test_excused"]["why"] == "upstream says so"
    assert {line["folder"] for line in told.values()} == {"openai_sdk"}


def test_excuses_name_a_framework_and_a_reason() -> None:
    assert all(excuse.folder in FRAMEWORKS and len(excuse.reason) > 20 for excuse in EXCUSES)


def test_a_feature_that_has_no_column_is_refused() -> None:
    with pytest.raises(ValueError, match="colour: the features are sync"):
        feature("colour")
