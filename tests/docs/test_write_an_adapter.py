"""The page on writing an adapter shows the template as it is, is true to its title, and names what exists."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributing" / "write-an-adapter.md").read_text()
TEMPLATE = ROOT / "examples" / "adapter_template" / "agl-tinyagents"


def lines_of_code(path: Path) -> int:
    """Lines that are neither empty, nor a comment, nor a docstring."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        holds = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if holds and ast.get_docstring(node) is not None:
            documented |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    numbered = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and n not in documented for n, line in numbered)


def test_the_page_shows_every_file_of_the_template_as_it_is() -> None:
    shown = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```\n", PAGE, re.S))
    sources = {str(path.relative_to(TEMPLATE)) for path in TEMPLATE.rglob("*.py")}
    assert set(shown) == {*sources, "pyproject.toml"}
    for name, text in shown.items():
        assert text == (TEMPLATE / name).read_text(), f"run python scripts/docs.py: {name} has changed"


def test_it_is_sixty_lines() -> None:
    assert sum(map(lines_of_code, (TEMPLATE / "src").rglob("*.py"))) <= 60


def test_what_core_gives_exists() -> None:
    table = PAGE.partition("## What core gives you")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([\w.]+)\.(\w+)[`(]", table, re.M)
    assert len(named) >= 10
    for module, name in named:
        assert hasattr(import_module(f"agentlightning.capture.{module}"), name), f"capture.{module}.{name}"
    for place in re.findall(r"`(adapters/[\w-]+)", PAGE):
        assert (ROOT / place).is_dir(), place
    for method in re.findall(r"`self\.(\w+)\(", PAGE):
        assert hasattr(import_module("agentlightning.capture.adapter").AdapterInstrumentor, method), method
