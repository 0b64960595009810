"""The lists of promises and of names name tests and words that exist."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import agentlightning as agl
from agl_v03.former_names import former_name, table

ROOT = Path(__file__).resolve().parents[2]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("face", ROOT / "scripts" / "face.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


face = load_script()
TESTS = {test for one in face.promises().values() for test in one["tests"]} | set(face.names().values())


@pytest.mark.parametrize("test", sorted(TESTS))
def test_it_exists(test: str) -> None:
    file, _, name = test.partition("::")
    functions = {n.name for n in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(n, "name")}
    assert not name or name in functions


@pytest.mark.parametrize("key", face.promises())
def test_the_documents_say_it(key: str) -> None:
    promise = face.promises()[key]
    assert promise["says"] and promise["tests"] and face.documented(promise), promise["docs"]


def statements(page: str) -> list[str]:
    """The rows, items and paragraphs of a page, without its code; those that only introduce or point are left
    out.
    """
    text = re.sub(r"```.*?```|<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    found: list[str] = []
    for block in filter(None, (part.strip() for part in text.split("\n\n"))):
        if block.startswith("|"):
            found += block.splitlines()[2:]
        elif block.startswith("- "):
            found += re.split(r"\n(?=- )", block)
        elif not block.startswith(("#", "For v1.0")) and not block.endswith(":"):
            found.append(" ".join(block.split()))
    return found


@pytest.mark.parametrize("statement", statements("docs/from-0x.md"))
def test_each_statement_about_former_versions_is_a_promise(statement: str) -> None:
    said = [one["docs"].partition(": ") for one in face.promises().values()]
    assert [words for page, _, words in said if page == "docs/from-0x.md" and words in statement]


@pytest.mark.plugins
def test_every_name_of_the_table_has_a_test_and_resolves() -> None:
    listed = set(face.names())
    assert {name for name in table()["names"] if "." not in name} <= listed
    for name in listed:
        module, _, last = name.rpartition(".")
        assert (former_name(module, last) if module else getattr(agl, last)) is not None


def test_a_promise_without_a_passed_test_is_not_kept() -> None:
    outcomes = face.Outcomes()
    outcomes.found = {"t.py::a": ["passed"], "t.py::b[1]": ["passed"], "t.py::b[2]": ["skipped"]}
    assert outcomes.passed("t.py::a") and not outcomes.passed("t.py::b") and not outcomes.passed("t.py")
    assert not outcomes.passed("t.py::never-ran")
