"""The pictures of the explanation are those that the code draws now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
pytest.importorskip("agl_dashboard")
import pictures  # noqa: E402


@pytest.mark.parametrize(
    ("name", "drawn"),
    [("layers.svg", pictures.layers), ("forest.svg", pictures.forest), ("learned.svg", pictures.learned)],
)
def test_it_is_drawn_from_the_code(name: str, drawn: object) -> None:
    assert callable(drawn)
    text = drawn()
    assert (ROOT / "docs" / "images" / name).read_text() == text, "run python scripts/pictures.py"
    assert "<title>" in text and "<script" not in text


def test_the_forest_has_a_row_that_goes_on_a_branch_and_a_call_that_is_left_out() -> None:
    picture = pictures.forest()
    assert picture.count('class="extends"><rect') == 2 and picture.count('class="branch"><rect') == 1
    assert picture.count('class="left-out"><rect') == 1 and "not trained: error" in picture
