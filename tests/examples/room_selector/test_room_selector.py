"""The exact grader of the room selector, its tool, and its scripted models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from room_selector import scripted
from room_selector.agent import FIRST, TOOL, use_tool
from room_selector.rooms import NO_ROOM, available, chosen, grade, load, right_choice

ALL = " ".join([*(said for said, _ in scripted.HARD.values()), *(said for said, _ in scripted.SOFT.values())])


def test_the_rule_gives_the_expected_choice_of_every_task() -> None:
    tasks = load()
    assert len(tasks) == 57 and (len(load("train")), len(load("val"))) == (28, 29)
    assert {task["id"]: right_choice(task["task_input"]) for task in tasks} == {
        task["id"]: task["expected_choice"] for task in tasks
    }


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("final_choice: Nova\nreason: it is free, unlike Orion", "Nova"),
        ("I take nova.", "Nova"),
        ("final_choice: No Room", NO_ROOM),
        ("Orion or Lyra", None),
        ("final_choice: Orion or Lyra", None),
        ("Novalis", None),
        ("", None),
    ],
)
def test_an_answer_names_one_room(answer: str, found: str | None) -> None:
    assert chosen(answer) == found
    assert grade(answer, "Nova") == float(found == "Nova")


def test_bookings_make_a_room_busy_at_their_edges_only() -> None:
    def free(time: str) -> bool:
        return next(room["free"] for room in available("2025-10-13", time, 30) if room["id"] == "Orion")

    assert (free("09:30"), free("09:45"), free("10:59"), free("11:00")) == (True, False, False, True)


@pytest.mark.parametrize("arguments", ["{", "[]", "{}", '{"date": "d", "time": "25:00", "duration_min": 5}'])
def test_a_mistake_in_a_tool_call_is_answered(arguments: str) -> None:
    assert "error" in json.loads(use_tool(arguments))


def answer(prompt: str, task: Any) -> str:
    """Return the choice of the obedient model, asked as the agent asks."""
    messages: list[Any] = [{"role": "user", "content": prompt.format(**task["task_input"])}]
    call = scripted.obedient({"messages": messages, "tools": [TOOL]})["tool_calls"][0]["function"]
    messages.append({"role": "tool", "content": use_tool(call["arguments"])})
    return scripted.obedient({"messages": messages})


def test_the_scripted_model_is_as_good_as_its_prompt() -> None:
    def share(prompt: str) -> float:
        return sum(grade(answer(prompt, task), task["expected_choice"]) for task in load()) / 57

    whole = share(f"{FIRST} {ALL} {scripted.NONE}")
    assert share(FIRST) < share(f"{FIRST} {scripted.HARD['free'][0]} {scripted.NONE}") < whole
    assert whole > 0.9
