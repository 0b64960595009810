"""The table of adapters is what was run, and what was run is what the adapters say they were tested with."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from agl_testing.contract.features import FEATURES
from contract.frameworks import FRAMEWORKS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "adapters.py"))
ENVIRONMENTS = tomllib.loads((ROOT / "scripts" / "environments.toml").read_text())
RESULT = json.loads((ROOT / "bench" / "results" / "adapters.json").read_text())["result"]
BUILT_IN = {"openai_sdk"}


@pytest.mark.parametrize("page", SCRIPT["PAGES"])
def test_a_page_shows_what_was_run(page: str) -> None:
    text = (ROOT / page).read_text()
    assert SCRIPT["filled"](page, RESULT, text) == text, "run python scripts/adapters.py --readme"


def test_every_call_is_exact_or_excused() -> None:
    rows = RESULT["frameworks"]
    assert RESULT["calls_made"] == RESULT["calls_exact"] + RESULT["calls_excused"] > 0
    for key in ("calls_made", "calls_exact", "calls_excused"):
        assert RESULT[key] == sum(row[key] for row in rows)
    assert not [fault for row in rows for fault in SCRIPT["faults"](row)]
    assert not [row for row in rows if SCRIPT["FAILS"] in row["cells"].values()]


def test_every_environments_frameworks_are_in_the_table() -> None:
    expected = {
        (name, FRAMEWORKS[folder][0])
        for name, table in ENVIRONMENTS.items()
        for folder in table.get("frameworks", ())
    }
    assert {(row["environment"], row["framework"]) for row in RESULT["frameworks"]} == expected


def test_every_adapter_has_a_row() -> None:
    folders = {path.parent.name.replace("-", "_") for path in ROOT.glob("adapters/*/pyproject.toml")}
    assert folders | BUILT_IN == set(FRAMEWORKS)


def pins(name: str) -> list[Requirement]:
    return [Requirement(text) for text in ENVIRONMENTS["common"]["requires"] + ENVIRONMENTS[name]["requires"]]


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name != "common"])
def test_pins_are_exact(name: str) -> None:
    for pin in pins(name):
        assert [spec.operator for spec in pin.specifier] == ["=="], pin


@pytest.mark.parametrize("folder", sorted(set(FRAMEWORKS) - BUILT_IN))
def test_what_was_run_is_in_the_adapters_range(folder: str) -> None:
    manifest = tomllib.loads((ROOT / "adapters" / folder.replace("_", "-") / "pyproject.toml").read_text())
    extras = manifest["project"]["optional-dependencies"]
    ranges: dict[str, list[Requirement]] = {}
    for text in (text for texts in extras.values() for text in texts):
        wanted = Requirement(text)
        ranges.setdefault(canonicalize_name(wanted.name), []).append(wanted)
    for name, table in ENVIRONMENTS.items():
        if folder not in table.get("frameworks", ()):
            continue
        for pin in pins(name):
            (version,) = [spec.version for spec in pin.specifier]
            known = ranges.get(canonicalize_name(pin.name), [])
            distribution = canonicalize_name(FRAMEWORKS[folder][1]) == canonicalize_name(pin.name)
            if distribution:
                assert any(wanted.specifier.contains(version) for wanted in known), f"{pin} in {name}"


def test_the_pages_pitfalls_name_tests_that_exist() -> None:
    page = (ROOT / "docs" / "contributing" / "conformance.md").read_text()
    folders = ROOT / "tests", ROOT / "plugins" / "testing" / "src"
    sources = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 10
    assert not [test for test in sorted(named) if f"def {test}(" not in sources]


# ------------------------------------------------------------------------------------------------ deciding
@pytest.mark.parametrize(
    ("outcomes", "cell"),
    [
        (["passed", "failed", "excused"], "✗"),
        (["passed", "excused", "lacks"], "excused"),
        (["passed", "lacks", "skipped"], "✓"),
        (["lacks", "lacks"], "–"),
        (["skipped"], "?"),
        ([], "?"),
    ],
)
def test_a_cell_is_the_worst_of_its_tests(outcomes: list[str], cell: str) -> None:
    assert SCRIPT["cell"](outcomes) == cell


def line(outcome: str = "passed", made: int = 2, exact: int = 2, features: tuple[str, ...] = FEATURES) -> Any:
    return {"outcome": outcome, "made": made, "exact": exact, "features": list(features), "why": "upstream"}


def row(*tests: Any) -> dict[str, Any]:
    found: dict[str, Any] = SCRIPT["verdict"](tests)
    return {"framework": "AutoGen", "version": "1.10", "openai": "3.51.0", "environment": "latest", **found}


def test_a_call_that_is_neither_exact_nor_excused_is_a_fault() -> None:
    assert SCRIPT["faults"](row(line())) == []
    (fault,) = SCRIPT["faults"](row(line(made=3)))
    assert "1 of 3 calls" in fault
    assert SCRIPT["faults"](row(line(), line("excused", made=3, exact=1))) == []


def test_what_no_test_decides_is_a_fault() -> None:
    (fault,) = SCRIPT["faults"](row(line(features=FEATURES[1:])))
    assert fault == "no test decides sync"
    assert SCRIPT["faults"](row()) == ["no test ran"]


def test_excuses_are_footnotes() -> None:
    rows = [row(line()), {**row(line("excused", made=3, exact=1)), "version": "1.9"}]
    table = SCRIPT["table"](SCRIPT["summary"](rows))
    assert "| [AutoGen](../../adapters/autogen/README.md) | 1.9, 1.10 | 3.51.0 | excused¹ |" in table
    assert "\n1. upstream\n" in table and "5 calls made, 3 found exact, 2 excused" in table


def test_readme_without_marks_is_said() -> None:
    with pytest.raises(SystemExit, match="marks"):
        SCRIPT["filled"]("README.md", SCRIPT["summary"]([row(line())]), "# no marks")
