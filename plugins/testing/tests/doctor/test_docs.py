"""The guide lists the checks that there are, in their order."""

from __future__ import annotations

import re
from pathlib import Path

from agl_testing.doctor.examination import MACHINE, RUN

GUIDE = (Path(__file__).parents[4] / "docs" / "doctor.md").read_text(encoding="utf-8")
NAMES = [step.name for step in (*MACHINE, *RUN)]


def test_the_table_lists_every_check() -> None:
    assert re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE) == NAMES


def test_the_example_shows_every_check() -> None:
    [example] = re.findall(r"```text\n(.*?)```", GUIDE, re.DOTALL)
    assert re.findall(r"^  [✓!✗–] (\w+) ", example, re.MULTILINE) == NAMES


def test_a_check_needs_only_earlier_ones() -> None:
    for place, step in enumerate((*MACHINE, *RUN)):
        assert set(step.needs) <= set(NAMES[:place])
