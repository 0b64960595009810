"""The moving picture of a terminal: its pace, its last frame, what it does not show, and when it stands."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import cast  # noqa: E402


class Cell(NamedTuple):
    """As of pyte's screens."""

    data: str
    fg: str = "default"
    bold: bool = False
    italics: bool = False


def cells(text: str) -> list[Cell]:
    return [Cell(letter) for letter in text.ljust(cast.COLUMNS)]


def text(row: list[Cell]) -> str:
    return "".join(cell.data for cell in row)


def recording(n: int = 100, seconds: float = 50.0) -> cast.Recording:
    frames = [cast.Frame(i * seconds / n, (f"<text>{i}</text>",)) for i in range(n + 1)]
    return cast.Recording(frames, seconds, 0)


def test_frames_keep_the_pace_and_the_end() -> None:
    kept = cast.thinned(recording().frames, 50.0, 10.0)
    gaps = [b.at - a.at for a, b in pairwise(kept)]
    assert min(gaps) >= 1 / cast.RATE and kept[-1].lines == ("<text>100</text>",)


def test_the_picture_is_well_formed_tells_its_pace_and_stands_at_its_end_on_request() -> None:
    drawn = cast.picture(recording(), cast.typed(["make", "<it>"], None), 10.0, "about & so on")
    root = ElementTree.fromstring(drawn)
    title, about = (root.find(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc"))
    assert title is not None and title.text == "make '<it>' — shown 5.0 times as fast"
    assert about is not None and about.text == "about & so on"
    (style,) = (node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}style"))
    frames = drawn.count("<g transform=")
    height = cast.LINES * cast.LINE + 2 * cast.ROOM
    assert f".film{{transform:translateY({-(frames - 1) * height}px)" in style
    assert f"animation:film {10 + cast.HOLD:.1f}s step-end -10.0s infinite" in style, "it begins with its end"
    assert "@media (prefers-reduced-motion:reduce){.film{animation:none}}" in style


def test_what_goes_to_a_file_is_named_in_the_command() -> None:
    assert cast.typed(["make", "it"], "a.json") == "make it > a.json"


def test_the_place_of_the_checkout_is_not_shown_and_frames_stay_in_their_column() -> None:
    row = cast._homely(cells(f"│ Files: {ROOT}/runs/a".ljust(90) + "│"))
    assert text(row).startswith("│ Files: ~/agent-lightning/runs/a ")
    assert len(row) == cast.COLUMNS and str(ROOT) not in text(row)
    plain = cells("│ nothing to hide │")
    assert cast._homely(plain) == plain


def test_runs_of_one_style_are_stretched_to_their_columns() -> None:
    row = [Cell("a", "green", True), *cells("  b<")[: cast.COLUMNS - 1]]
    drawn = cast._line(row)
    assert 'font-weight="bold"' in drawn and cast.COLOURS["green"] in drawn and "b&lt;" in drawn
    assert cast._line(cells("")) == ""
