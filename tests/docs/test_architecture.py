"""Files and names that the page on the architecture points to are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCES = [
    *(ROOT / "core" / "src").rglob("*.py"),
    *(ROOT / "plugins").glob("*/src/**/*.py"),
]
POINTERS = sorted(set(re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", PAGE)))


def found(path: str) -> list[Path]:
    return [source for source in SOURCES if source.as_posix().endswith("/" + path)]


@pytest.mark.parametrize(("path", "name"), POINTERS)
def test_a_pointer_leads_somewhere(path: str, name: str) -> None:
    files = found(path)
    assert files, f"docs/architecture.md names {path}, and there is no such file"
    if name:
        last = name.split(".")[-1]
        pattern = re.compile(rf"^\s*(?:async )?(?:def|class) {last}\b|^{last}\b", re.MULTILINE)
        assert any(pattern.search(file.read_text()) for file in files), f"{path} has no {name}"


def test_the_page_has_pointers() -> None:
    assert len(POINTERS) > 40
