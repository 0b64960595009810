"""What a docstring describes is in the code below it: "``name``: …" names a parameter, a field, a key."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("core", "plugins", "adapters", "examples", "bench", "scripts")
DESCRIBED = re.compile(r"(?:\A|[.;] )``([a-z_]\w*)``: ")
SUBJECT = re.compile(r"(?:\A|[.;] )``([a-z_]\w*)``[: ]")
"""In a class that is made from arguments, what begins a sentence is described too."""
Described = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def described(node: Described) -> list[str]:
    """The names that the docstring of a class or function describes."""
    made = isinstance(node, ast.ClassDef) and any(
        isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body
    )
    return (SUBJECT if made else DESCRIBED).findall(" ".join((ast.get_docstring(node) or "").split()))


def words(node: Described) -> Iterator[str]:
    """The names and the words of strings in a class or function, without its docstring."""
    docstring = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
    for one in ast.walk(node):
        match one:
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Constant(value=str(text)) if one is not docstring:
                yield from re.findall(r"\w+", text)


def unknown(source: str) -> Iterator[str]:
    """Names that docstrings describe and the code below them does not have, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, Described) or not (names := described(node)):
            continue
        if any(isinstance(one, ast.arguments) and one.kwarg for one in ast.walk(node)):
            continue  # it takes names that its signature does not list
        known = {*words(node)}
        yield from (f"line {node.lineno}: {node.name}: ``{name}``" for name in names if name not in known)


def test_parameters_that_are_gone_are_found() -> None:
    source = '''
class Member:
    """An address and its process. ``begin`` makes the first message; ``serve`` takes what it says; ``died``
    is awaited after each end.
    """

    def __init__(self, number: int, begin: str, take: str) -> None:
        self.begin = begin

def read(place: str) -> str:
    """Read a file. ``place``: where it lies. ``encoding``: of its text."""
    return open(place).read()
'''
    assert [*unknown(source)] == [
        "line 2: Member: ``serve``", "line 2: Member: ``died``", "line 10: read: ``encoding``",
    ]  # fmt: skip


@pytest.mark.slow
def test_every_name_that_is_described_is_there() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if ".venv" not in path.parts]
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in files
        if (wrong := [*unknown(path.read_text(encoding="utf-8"))])
    }
    assert not found
