"""Within a distribution, a top-level class name means one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted([ROOT / "core/src", *ROOT.glob("plugins/*/src"), *ROOT.glob("adapters/*/src")])


def classes(source: Path) -> dict[str, list[str]]:
    """Name of a class → the modules that define it at their top level."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(source).as_posix())
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.parent.name)
def test_a_class_name_is_used_once(source: Path) -> None:
    found = classes(source)
    assert found
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}


def test_every_distribution_is_looked_at() -> None:
    assert len(SOURCES) == len([*ROOT.glob("core/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")])
