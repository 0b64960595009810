"""docs/llms.txt: every page of the navigation with a line, and none that is not there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import llms  # noqa: E402


@pytest.mark.plugins
def test_it_is_what_the_script_writes_in_the_form_of_llms_txt() -> None:
    text = llms.FILE.read_text(encoding="utf-8")
    assert text == llms.text(), "run python scripts/llms.py"
    assert text.startswith("# Agent Lightning\n\n> ") and text.count("\n# ") == 0
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\.html\)", text, re.M)
    assert len(linked) > 40 and len(set(linked)) == len(linked) and "skill/SKILL" in linked


def test_a_page_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        llms.content("nowhere.md")
    with pytest.raises(FileNotFoundError):
        llms.content("reference/nothing.md")


def test_the_line_of_a_page_is_its_first_sentence() -> None:
    page = "# T\n\n<!-- x: y -->\n[中文](a.md)\n\n| a |\n\nSet `a.b: c. D` to **one** [word](w.md). More.\n"
    assert llms.first_sentence(page) == "Set `a.b: c. D` to one word."
    described = "---\ndescription: Trains all the agents. Use it.\n---\n# T\n\nOther text here.\n"
    assert llms.first_sentence(described) == "Trains all the agents."
    assert llms.first_sentence("# T\n") == ""
