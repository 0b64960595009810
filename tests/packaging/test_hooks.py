"""Every hook is asked by somebody, and answered by a distribution other than core."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

from agentlightning import hookspecs
from agentlightning.plugins.manager import GROUP

ROOT = Path(__file__).parents[2]
POINTS = [point for point in entry_points(group=GROUP) if point.dist and point.dist.name.startswith("agl-")]
"""The plugins of the suite; core has no entry point."""


def hooks(module: ModuleType) -> list[str]:
    return [name for name, one in vars(module).items() if hasattr(one, f"{GROUP}_spec")]


def implemented(holder: object) -> set[str]:
    """The hooks that a module or a class implements."""
    return {name for name, one in inspect.getmembers(holder) if hasattr(one, f"{GROUP}_impl")}


def specified() -> Iterator[tuple[str, Path]]:
    """Every hook, with the folder of the distribution whose hook it is."""
    yield from ((name, ROOT / "core" / "src") for name in hooks(hookspecs))
    for point in POINTS:
        plugin = point.load()
        for module in getattr(plugin, "agl_hookspecs", list)():
            folder = Path(str(plugin.__file__)).parent
            yield from ((name, folder) for name in hooks(module))


def answered(run: Path) -> set[str]:
    """The hooks that plugins implement, found as a run in the folder ``run`` finds them: by entry points, and
    in the trackers that these register.
    """
    found: set[str] = set()
    for point in POINTS:
        plugin = point.load()
        found |= implemented(plugin)
        for spec in getattr(plugin, "agl_trackers", list)():
            found |= implemented(spec.factory(run)) if spec.options is None else set()
    return found


@cache
def asked(folder: Path) -> set[str]:
    """What the code in ``folder`` names: texts and attributes, and no function that it defines."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found


SPECIFIED = dict(specified())


def test_hooks_of_core_and_of_plugins_are_looked_at() -> None:
    assert {"agl_drivers", "agl_run_finished", "agl_curricula"} <= SPECIFIED.keys() and len(SPECIFIED) > 35
    assert {point.dist.name for point in POINTS if point.dist} >= {"agl-local", "agl-trackers", "agl-autogen"}


def test_every_hook_is_answered_outside_core(tmp_path: Path) -> None:
    assert SPECIFIED.keys() - answered(tmp_path) == set()


@pytest.mark.parametrize("hook", sorted(SPECIFIED))
def test_every_hook_is_asked_by_whose_it_is(hook: str) -> None:
    assert hook in asked(SPECIFIED[hook])
