"""Files and names that the pages on the code point to are there; the page on the architecture is short."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
PAGES = (
    *("contributing/architecture", "contributing/guarantees", "contributing/how-it-works"),
    *("deploy", "limits", "resume"),
)
TEXT = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in PAGES)
SOURCES = [
    *(ROOT / "core" / "src").rglob("*.py"),
    *(ROOT / "plugins").glob("*/src/**/*.py"),
]
POINTERS = sorted(set(re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", TEXT)))


def found(path: str) -> list[Path]:
    return [source for source in SOURCES if source.as_posix().endswith("/" + path)]


@pytest.mark.parametrize(("path", "name"), POINTERS)
def test_a_pointer_leads_somewhere(path: str, name: str) -> None:
    files = found(path)
    assert files, f"a page names {path}, and there is no such file"
    if name:
        last = name.split(".")[-1]
        pattern = re.compile(rf"^\s*(?:async )?(?:def|class) {last}\b|^{last}\b", re.MULTILINE)
        assert any(pattern.search(file.read_text()) for file in files), f"{path} has no {name}"


def test_the_page_has_pointers() -> None:
    assert len(POINTERS) > 40


def test_an_afternoon_is_enough_for_the_page_and_its_files() -> None:
    assert len(PAGE.split()) <= 800
    spine = re.search(r"## Reading order\n(.*?)\n## ", PAGE, re.DOTALL)
    assert spine and 20 <= len(re.findall(r"`[\w/]+\.py`", spine[1])) <= 28
