"""Files are read and written as UTF-8, whatever the locale: every call that takes an encoding names one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("core", "plugins", "adapters", "examples", "bench", "scripts")
PROCESSES = ("run", "Popen", "check_output")


def unnamed(source: str) -> Iterator[int]:
    """The lines of calls that decode or encode by the locale."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg for keyword in node.keywords}
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if "encoding" in given or None in given:
            continue
        if (
            (name == "read_text" and not node.args)
            or (name == "write_text" and len(node.args) == 1)
            or (name == "open" and _is_text(node))
            or (name in PROCESSES and given & {"text", "universal_newlines"})
        ):
            yield node.lineno


def _is_text(node: ast.Call) -> bool:
    """Whether a call of ``open`` or ``Path.open`` names a mode of text, or is the built-in without a mode."""
    modes = [one.value for one in node.args if isinstance(one, ast.Constant)]
    modes += [k.value.value for k in node.keywords if k.arg == "mode" and isinstance(k.value, ast.Constant)]
    named = [mode for mode in modes if isinstance(mode, str) and mode and set(mode) <= set("rwxabt+")]
    return "b" not in named[0] if named else isinstance(node.func, ast.Name)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("p.read_text()", True),
        ("p.read_text(encoding='utf-8')", False),
        ("p.write_text(x)", True),
        ("open(p)", True),
        ("open(p, 'rb')", False),
        ("p.open('w')", True),
        ("store.open(info)", False),
        ("subprocess.run(x, text=True)", True),
        ("subprocess.run(x, encoding='utf-8')", False),
    ],
)
def test_what_is_looked_for(source: str, found: bool) -> None:
    assert bool([*unnamed(source)]) is found


def test_every_file_is_read_and_written_as_utf_8() -> None:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    files = [file for file in files if not {".venv", "tests"} & set(file.relative_to(ROOT).parts)]
    assert len(files) > 500
    found = [
        f"{file.relative_to(ROOT)}:{line}" for file in files for line in unnamed(file.read_text("utf-8"))
    ]
    assert not found
