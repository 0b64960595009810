"""The table of docs/structured.md is that of the recorded result, in which every cell is trained."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULT: dict[str, Any] = json.loads((ROOT / "bench/results/structured.json").read_text())["result"]


@pytest.fixture
def table() -> ModuleType:
    spec = spec_from_file_location("structured_table", ROOT / "bench" / "structured" / "table.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table(table: ModuleType) -> None:
    assert table.text(RESULT) in (ROOT / "docs" / "structured.md").read_text()


def test_engines_that_differ_are_named(table: ModuleType) -> None:
    rows = {"a": {"SDK": {"x": "trained"}}, "b": {"SDK": {"x": "refused", "y": "trained"}}}
    made = table.text({"rows": rows, "versions": {"SDK": "1"}}).splitlines()
    assert made[-1] == "| SDK 1 | a: trained, b: refused | a: –, b: trained |"


def test_every_cell_but_the_refused_is_trained_on_both_engines() -> None:
    assert set(RESULT["rows"]) == set(RESULT["own"]) == {"agl-local", "vllm-cpu"}
    assert RESULT["cells"] - RESULT["trained"] == RESULT["cells"] - RESULT["served"] == len(RESULT["refused"])
    assert {word for row in RESULT["own"].values() for word in row.values()} == {"trained"}
