"""Every message that the page of troubleshooting quotes is one that the code can print."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = [
    line
    for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.S | re.M)
    for line in block.splitlines()
    if line.strip()
]
GAP = "…"


@cache
def templates() -> list[str]:
    """Every text of the suite's code, with a gap for each part that is put in."""
    found: list[str] = []
    for room in ("core/src", "plugins/cluster/src", "plugins/local/src", "plugins/audit/src"):
        for file in (ROOT / room).rglob("*.py"):
            found += [text for node in ast.walk(ast.parse(file.read_text())) if (text := template(node))]
    return found


def template(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sdgr]", GAP, node.value)
    return ""


def printed_by(message: str) -> bool:
    """Whether each part of a message between two gaps stands in a text of the code.

    A reason is made of its kind and its text, and some messages of two sentences.
    """
    parts = [part.strip(" :") for part in re.split(f"{GAP}|: ", message)]
    wanted = [part for part in parts if len(part) > 1]
    return bool(wanted) and all(any(part in text for text in templates()) for part in wanted)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_prints_it(message: str) -> None:
    assert printed_by(message)


@pytest.mark.parametrize(
    "message",
    ["the agent fell asleep after … s", "timeout: the attempt took longer than … hours", GAP],
)
def test_what_the_code_does_not_print_is_found_out(message: str) -> None:
    assert not printed_by(message)


def test_every_symptom_has_its_cause_its_command_and_its_remedy() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.M)[1:]
    assert len(sections) >= 10 and len(MESSAGES) >= 14
    for section in sections:
        title = section.partition("\n")[0]
        assert "**Fix.**" in section or "agl " in section, title
    named = {"NaN", "hangs", "rows 0", "CUDA out of memory", "are cut", "one rollout", "left out"}
    assert all(any(word in section.partition("\n")[0] for section in sections) for word in named)
