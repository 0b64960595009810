"""The name that was meant by one that is not known."""

from __future__ import annotations

from typing import Any

import pytest

import agentlightning as agl
from agentlightning.types.base import nearest


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("gpro", ["dapo", "dr_grpo", "grpo", "gspo"], "grpo"),
        ("gspoo", ["grpo", "gspo"], "gspo"),
        ("xyz", ["grpo", "gspo"], None),
    ],
)
def test_letters_in_another_order_are_nearer_than_other_letters(
    name: str, known: list[str], meant: str | None
) -> None:
    assert nearest(name, known) == nearest(name, known[::-1]) == meant


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "x"}, r"It is backend\.policy of a file, or policy=… of Trainer"),
        ({"tasks": []}, r"It is environment\.train .* fit\(agent, train, val\)"),
        (
            {"group_size": 8},
            r"training\.recipe\.group_size of a file, or algorithm=agl\.GRPO\(group_size=…\)",
        ),
        ({"top_p": 0.9}, r"agl\.GRPO\(top_p=…\)"),
        ({"lr": 1e-4}, r"backend\.options\.lr of a file, or options=\{'lr': …\}"),
        ({"stepz": 3}, "Did you mean 'steps'"),
        ({"algorithm": "gpro"}, "Did you mean 'grpo'"),
    ],
)
def test_words_of_other_libraries_are_led_to_where_they_stand(fields: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, agl.types.UsageError), match=said):
        _ = agl.Trainer(**fields).recipe
