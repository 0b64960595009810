"""The tables of docs/contributing/conformance.md are those of the recorded programs, exact or refused."""

from __future__ import annotations

import json
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULT: dict[str, Any] = json.loads((ROOT / "bench/results/programs.json").read_text())["result"]


@pytest.fixture
def table() -> ModuleType:
    spec = spec_from_file_location("programs_table", ROOT / "bench" / "programs" / "table.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_tables(table: ModuleType) -> None:
    assert table.text(RESULT) in (ROOT / "docs" / "contributing" / "conformance.md").read_text()


def test_a_refused_program_is_named_with_what_it_asks_for(table: ModuleType) -> None:
    ran = {
        "requests": 3,
        "exact": 2,
        "named": 1,
        "refused": {"no-such": 1},
        "why": "a moon",
        "origin": "a==1:b.py",
    }
    own = {"requests": 1, "exact": 1, "named": 0, "refused": {}, "why": "", "origin": "written here in …"}
    own |= {"framework": "b", "version": "2"}
    lines = table.text({"of": {"one": ran, "two": own}}).splitlines()
    assert lines[2:4] == ["| a 1 | 1 | 3 | 2 | 1 | 1 |", "| b 2, written here | 1 | 1 | 1 | 0 | 0 |"]
    assert lines[4] == "| **all** | 2 | 4 | 3 | 1 | 1 |"
    assert lines[-1] == "| one | a moon | `no-such` |"


def test_every_answered_request_of_forty_programs_is_exact() -> None:
    assert RESULT["programs"] == len(RESULT["of"]) >= 40
    assert RESULT["exact"] + RESULT["refused"] == RESULT["requests"] > 100
    assert RESULT["not_sound"] == []


def test_the_manifest_is_what_was_run() -> None:
    listed = tomllib.loads((ROOT / "bench/programs/programs.toml").read_text())["program"]
    assert [entry["name"] for entry in listed] == list(RESULT["of"])
    for entry in listed:
        assert sorted(entry.get("refused", [])) == sorted(RESULT["of"][entry["name"]]["refused"])
        assert bool(entry.get("why")) == bool(entry.get("refused"))
