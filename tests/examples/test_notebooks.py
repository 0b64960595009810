"""The notebooks: what they hold, that their code is current, and (nightly) that every cell runs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import notebooks  # noqa: E402
import reference  # noqa: E402
import snippets  # noqa: E402

NAMES = ["first_agent", "look_at_a_run", "prompts"]
DOCUMENTED = {"agl_examples.bundled.math"}
"""Modules besides the packages themselves that README shows."""
PLACE = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|work|opt|usr|var|mnt)/|[A-Z]:\\\\")
"""The beginning of a path on somebody's machine."""
SHELL = re.compile(r"^( *)(?:\w+ = )?!(.*)$", re.M)
"""A line of IPython that runs a command."""


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def wrong_imports(tree: ast.AST) -> list[str]:
    """What a cell uses of the suite that is no public name of a package."""
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "agl":
            wrong += [] if hasattr(agl, node.attr) else [f"agl.{node.attr}"]
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            if not module.startswith(("agl_", "agentlightning")):
                continue
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            public = "." not in module or module in DOCUMENTED
            there = importlib.util.find_spec(module) is not None
            wrong += [] if public and there else [module]
            wrong += [f"{module}.{one}" for one in names if one.startswith("_") or not has(module, one)]
    return wrong


def has(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name)


def test_these_are_the_notebooks() -> None:
    assert [one.stem for one in notebooks.notebooks([])] == NAMES
    with pytest.raises(SystemExit, match="no notebook nothing"):
        notebooks.notebooks(["nothing"])


@pytest.mark.plugins
@pytest.mark.parametrize("name", NAMES)
def test_cells_compile_and_use_public_names_and_commands(name: str) -> None:
    known = dict(reference.tree())
    notebook = read(name)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["cells"][0]["cell_type"] == "markdown" and source(notebook["cells"][0]).startswith("# ")
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for number, cell in notebooks.code_cells(notebook):
        text = source(cell)
        for _, command in SHELL.findall(text):
            words = command.split()
            assert words[0] != "agl" or snippets._command(words[1:], known) == "", f"cell {number}"
        plain = SHELL.sub(r"\1pass", text)
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(plain, f"{name}, cell {number}", "exec", flags)
        assert wrong_imports(tree) == [], f"cell {number}"
        assert len(text.splitlines()) <= 45, f"cell {number} is long"
    links = re.findall(r"\]\(([^)#:]+)\)", "".join(source(cell) for cell in notebook["cells"]))
    assert [one for one in links if not (notebooks.FOLDER / one).exists()] == []


@pytest.mark.parametrize("name", NAMES)
def test_each_cell_shows_something_and_no_machine(name: str) -> None:
    drawn = 0
    for number, cell in notebooks.code_cells(read(name)):
        assert cell["outputs"] and cell["execution_count"], f"cell {number} was not executed or shows nothing"
        assert "execution" not in cell["metadata"]
        for output in cell["outputs"]:
            assert output["output_type"] in ("stream", "display_data", "execute_result"), f"cell {number}"
            data = dict(output.get("data", {}))
            drawn += notebooks.IMAGE in data
            data.pop(notebooks.IMAGE, None)
            said = json.dumps([output.get("text", ""), data], ensure_ascii=False)
            assert not PLACE.search(said) and "\\u001b" not in said, f"cell {number}: {said[:300]}"
    assert drawn, "nothing is drawn"


def test_what_is_not_public_or_not_there_is_named() -> None:
    cell = "import agl_local.network\nfrom agl_local import load_policy, nothing\nagl.Trainer, agl.nothing"
    assert sorted(wrong_imports(ast.parse(cell))) == ["agl.nothing", "agl_local.network", "agl_local.nothing"]


def test_outputs_lose_places_and_colours() -> None:
    text = f"\x1b[32mFiles: {ROOT}/runs/a  \x1b[0m\r\nin /scratch/x/runs"
    cell = {"cell_type": "code", "metadata": {"execution": 1}, "outputs": [{"text": text}]}
    notebooks.cleaned({"cells": [cell], "metadata": {}}, Path("/scratch/x"))
    assert cell["outputs"] == [{"text": "Files: ~/runs/a\nin ~/runs"}] and cell["metadata"] == {}


@pytest.mark.nightly
def test_every_cell_runs() -> None:
    pytest.importorskip("nbclient", reason="make notebooks has an environment with it")
    done = subprocess.run([sys.executable, notebooks.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["notebooks"] == said["ok"] == len(NAMES) and said["cells"] > 20


@pytest.mark.slow
def test_a_cell_that_raises_is_named_with_its_error(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    cells = [nbformat.v4.new_code_cell(text) for text in ("1 + 1", "raise ValueError('no such thing')", "3")]
    done, wrong = notebooks.executed(nbformat.v4.new_notebook(cells=cells), tmp_path)
    assert done == 2 and wrong.startswith("cell 2: ") and "ValueError: no such thing" in wrong
