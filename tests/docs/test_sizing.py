"""The page on sizing, and the planner's costs, are those of the committed benchmarks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from agentlightning.plan.costs import committed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/sizing.py."""
    spec = importlib.util.spec_from_file_location("sizing", ROOT / "scripts" / "sizing.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_and_costs_are_fresh(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run python scripts/sizing.py"


def test_a_stale_figure_is_seen(script: ModuleType) -> None:
    text = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
    assert script.page(committed(), text) == text
    assert script.page(committed(), text.replace("Binds first: ", "Binds last: ")) == text
    assert text.count("<!-- end -->") == len(script.EXAMPLES) + 2 and "| `peak` | 2 × |" in text
