"""The skill for coding agents: its shape, and its commands with what the skill says that one sees."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "docs" / "skill" / "SKILL.md"
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import shells  # noqa: E402

PARTS = ["Connect my agent", "Choose a reward", "Read a run", "Why does it not learn"]
BLOCKS = re.compile(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```\n", re.M | re.S)
GAP = "…"


def text() -> str:
    return SKILL.read_text(encoding="utf-8")


def parts() -> dict[str, str]:
    """Title → text of a part."""
    found = re.split(r"^## (.+)$", text(), flags=re.M)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def unseen(wanted: str, said: str) -> list[str]:
    """The lines of a block ``text`` that are in no line of what was said."""
    lines = [" ".join(line.split()) for line in said.splitlines()]
    return [
        line
        for line in wanted.splitlines()
        if not any(
            re.fullmatch(".*".join(map(re.escape, line.strip().split(GAP))), one, re.S) for one in lines
        )
    ]


def test_it_has_front_matter_and_four_parts_each_with_commands_and_what_one_sees() -> None:
    _, front, body = text().split("---\n", 2)
    about = yaml.safe_load(front)
    assert set(about) == {"name", "description"} and re.fullmatch("[a-z-]{1,64}", about["name"])
    assert len(about["description"]) < 1024 and body.startswith("\n# ")
    assert list(parts()) == PARTS
    for name, part in parts().items():
        assert BLOCKS.search(part), f"{name} has no commands"
        assert part.count("```sh\n") == len(BLOCKS.findall(part)), f"{name}: a block says not what one sees"


def test_a_line_that_is_not_seen_is_named() -> None:
    assert unseen("…b…\nno\n", "│ a  b │\n") == ["no"] and unseen("a b\n", "a   b\n") == []


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize("part", PARTS)
def test_its_commands_run_and_say_what_is_shown(part: str, tmp_path: Path) -> None:
    try:
        folder = tmp_path / "project"
        shutil.copytree(shells.project(), folder, symlinks=True)
    finally:
        if part == PARTS[-1]:
            shells.forget()
    for typed, wanted in BLOCKS.findall(parts()[part]):
        said = "".join(shells.said(line, folder) for line in shells.commands(typed))
        assert unseen(wanted, said) == [], said
