"""No module of core, an adapter or a plugin imports itself by way of others, also not inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FACE = "agentlightning"
"""Names for type checkers what the package imports when it is asked for."""
SOURCES = [ROOT / "core/src", *sorted(ROOT.glob("adapters/*/src")), *sorted(ROOT.glob("plugins/*/src"))]


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports, also those for its type checker."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imported(node)


def graph(source: Path) -> dict[str, set[str]]:
    """Module → the modules of the same source tree that it imports."""
    paths = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.rglob("*.py")
    }
    found = {}
    for module, path in paths.items():
        names = imported(ast.parse(path.read_text()))
        homes = {name if name in paths else name.rpartition(".")[0] for name in names}
        found[module] = (homes & paths.keys()) - {module} if module != FACE else set()
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.parent.name)
def test_imports_have_no_circle(source: Path) -> None:
    try:
        TopologicalSorter(graph(source)).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " ← ".join(error.args[1]))


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f() -> None:\n    from b import x\n")
    (tmp_path / "b.py").write_text("import a\n")
    with pytest.raises(CycleError):
        TopologicalSorter(graph(tmp_path)).prepare()
