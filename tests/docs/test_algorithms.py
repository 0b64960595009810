"""docs/algorithms.md is what the code says now, and names every recipe with its formula."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from agentlightning.plugins.manager import build
from agl_verl import plugin as verl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()


def test_the_page_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    try:
        import algorithm_page

        assert algorithm_page.page() == PAGE, "run python scripts/docs.py"
    finally:
        sys.modules.pop("algorithm_page", None)


def test_every_recipe_has_its_formula_its_paper_and_its_needs() -> None:
    recipes = build([verl], discover=False).recipes
    assert {"grpo", "ppo", "grpo_passk"} <= recipes.keys()
    for name, spec in recipes.items():
        section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
        assert "```text\n" in section and "A" in section.split("```text\n")[1], name
        (row,) = re.findall(rf"^\| \[`{re.escape(name)}`\].*$", PAGE, re.M)
        assert spec.about in row and row.count("|") == 6, row


def test_the_picture_is_drawn_from_the_recorded_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    from algorithms.summary import plot

    recorded = json.loads((ROOT / "bench" / "results" / "algorithms.json").read_text())["result"]["recipes"]
    picture = (ROOT / "docs" / "images" / "algorithms.svg").read_text()
    assert picture == plot(recorded)
    assert picture.count("<circle") == len(recorded) and len(set(re.findall("#[0-9a-f]{6}", picture))) <= 4
    assert picture.count("not learned") == sum(not one["learned"] for one in recorded.values())


def test_a_driver_that_cannot_says_why() -> None:
    (row,) = re.findall(r"^\| \[`ppo`\].*$", PAGE, re.M)
    assert "no: the local driver has no value head" in row and row.endswith("| yes |")
