"""The pages in Chinese are in step with the English ones, and a page that is not is found out."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "translations.py"))
problems, digest, filled = SCRIPT["problems"], SCRIPT["digest"], SCRIPT["filled"]
SOURCE = (
    "# Title\n\nWords, [a link](a.md).\n\n```sh\nmake it   # now\n```\n\n"
    "```text\nan answer\n```\n\n| a |\n|---|\n| b |\n"
)


def translated(source: str) -> str:
    mark = f"<!-- translated from page.md, reviewed at sha256 {digest(source)} -->\n"
    text = (
        source.replace("Title", "标题").replace("Words, [a link]", "文字，[链接]").replace("# now", "# 现在")
    )
    return mark + text


@pytest.mark.parametrize("page", SCRIPT["PAGES"])
def test_it_is_in_step(page: str) -> None:
    source, translation = (ROOT / SCRIPT["PAGES"][page]).read_text(), (ROOT / page).read_text()
    assert list(problems(source, translation)) == []
    assert filled(source, translation) == translation, "run python scripts/translations.py"


def test_a_translation_with_its_own_words_is_in_step() -> None:
    assert list(problems(SOURCE, translated(SOURCE))) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.partition("\n")[2], "does not name the source"),
        (lambda text: text.replace("make it", "make that"), "block 1 differs"),
        (lambda text: text.replace("# 标题", "## 标题"), "headings"),
        (lambda text: text.replace("(a.md)", "(b.md)"), "a.md, b.md"),
        (lambda text: text.replace("| b |\n", ""), "table rows"),
        (lambda text: text.replace("```text\nan answer\n```\n", ""), "1 blocks for 2"),
    ],
)
def test_what_is_not_in_step_is_named(change: Callable[[str], str], problem: str) -> None:
    assert any(problem in said for said in problems(SOURCE, change(translated(SOURCE))))


def test_a_changed_source_wants_a_review_and_a_new_answer_of_a_command_does_not() -> None:
    page = translated(SOURCE)
    assert any("changed since" in said for said in problems(SOURCE.replace("Words", "More words"), page))
    newer = SOURCE.replace("an answer", "another answer")
    assert list(problems(newer, filled(newer, page))) == []
    assert list(problems(newer, page)) == ["block 2 differs from the source's"]
