"""`import agentlightning` loads nothing, and every public name is where the table says."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import agentlightning
from agentlightning import types

HEAVY = {
    "agl_autogen",
    "agl_local",
    "aiohttp",
    "autogen_agentchat",
    "backports",
    "cyclopts",
    "jinja2",
    "litellm",
    "msgspec",
    "numpy",
    "openai",
    "opentelemetry",
    "pluggy",
    "pydantic",
    "ray",
    "rich",
    "sqlalchemy",
    "torch",
    "transformers",
    "typer",
    "wrapt",
    "yaml",
    "backports.zstd",
}


def modules_after(statement: str) -> set[str]:
    """Top-level modules loaded in a fresh interpreter after ``statement``."""
    listing = "import json, sys; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    code = f"{statement}\n{listing}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_loads_no_library() -> None:
    loaded = modules_after("import agentlightning")
    assert "agentlightning" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_listing_names_loads_no_library() -> None:
    assert modules_after("import agentlightning; dir(agentlightning), agentlightning.__all__").isdisjoint(
        HEAVY
    )


def test_types_load_no_tensor_library_server_or_database() -> None:
    assert modules_after("import agentlightning; agentlightning.Call").isdisjoint(HEAVY - {"msgspec"})


@pytest.mark.parametrize("name", sorted(agentlightning._HOMES))
@pytest.mark.filterwarnings("ignore:.* is now called:FutureWarning")
def test_public_name_resolves(name: str) -> None:
    assert getattr(agentlightning, name) is not None
    assert name in agentlightning.__all__
    assert name in dir(agentlightning)


def test_all_types_are_public() -> None:
    assert {name for name, home in agentlightning._HOMES.items() if home == "types"} == _reexported(types)


def test_type_checkers_see_the_same_names_from_the_same_homes() -> None:
    homes = {name: f"agentlightning.{home}" for name, home in agentlightning._HOMES.items()}
    assert _names_for_type_checkers() == homes


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'agentlightning' has no attribute 'nonsense'"):
        agentlightning.nonsense  # noqa: B018 - the access is the test


def _reexported(module: ModuleType) -> set[str]:
    """Names that a module imports to export them: ``from … import X as X``."""
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imports = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return {alias.name for alias in imports if alias.asname == alias.name}


def _names_for_type_checkers() -> dict[str, str]:
    """Public name → its module, read from the ``if TYPE_CHECKING`` block."""
    tree = ast.parse(Path(agentlightning.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    public: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        names = [alias.asname for alias in node.names if alias.asname]
        if node.names[0].name == "*":
            names = sorted(_reexported(import_module(str(node.module))))
        public |= dict.fromkeys(names, str(node.module))
    return public
