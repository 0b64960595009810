"""The contributors' table of quickstarts with a pretrained model is that of the recorded result.

Also what the benchmark counts as a valid call, a used result and a valid answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentlightning.types import Call, Record, Rollout

ROOT = Path(__file__).parents[2]
RESULT: dict[str, Any] = json.loads((ROOT / "bench/results/real_quickstarts.json").read_text())["result"]
NAMES = {"autogen": "AutoGen", "openai-agents": "OpenAI Agents", "pydantic-ai": "Pydantic AI"}
sys.path.insert(0, str(ROOT / "bench" / "real_quickstarts"))
from counts import of_form, of_tools  # noqa: E402

TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
ASKED = [{"role": "user", "content": "What is 3 + 4?"}]


def row(name: str) -> str:
    """What the page says of a framework."""
    one, asked = RESULT["frameworks"][name], RESULT["forms"]["frameworks"][name]
    cells = (
        f"{NAMES[name]} {one['version']}",
        f"{one['before']:.2f} → {one['after']:.2f}",
        f"{one['exact']} of {one['calls']}",
        f"{one['valid']} of {one['replies']}",
        f"{asked['forced']['valid']} of {asked['forced']['replies']}",
        f"{asked['forced']['used_result']} of {asked['forced']['given_result']}",
        f"{asked['schema']['valid']} of {asked['schema']['asked']}",
        f"{asked['words']['valid']} of {asked['words']['asked']}",
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_figures(name: str) -> None:
    assert row(name) in (ROOT / "docs" / "contributing" / "models.md").read_text()


def test_every_answered_call_is_exact_and_tokens_were_trained() -> None:
    counted = [*RESULT["frameworks"].values(), RESULT["forms"]]
    assert all(one["exact"] == one["answered"] > 0 for one in counted)
    assert all(one["tokens_trained"] > 0 for one in RESULT["frameworks"].values())
    assert RESULT["inexact"] == []


def test_the_page_of_results_has_their_sum() -> None:
    page = (ROOT / "docs" / "contributing" / "results.md").read_text()
    ones, asked = RESULT["frameworks"].values(), RESULT["forms"]["frameworks"].values()
    exact, calls = (sum(one[key] for one in ones) for key in ("exact", "calls"))
    assert f"{exact} of {calls} calls exact; reward on 32 sums" in page
    for form, words in (("schema", "JSON by a schema"), ("words", "in words")):
        valid, of = (sum(one[form][key] for one in asked) for key in ("valid", "asked"))
        assert f"{words} {valid} of {of}" in page
    assert sum(one["called"] for one in ones) == 0 and "no tool call of its own" in page


def called(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}


def record(*answers: tuple[list[dict[str, Any]], dict[str, Any]]) -> Record:
    """A rollout whose model gave ``answers`` to messages."""
    ids = {"rollout_id": "r", "attempt_id": "a"}
    calls = [
        Call(call_id=str(i), request={"messages": [*ASKED, *more], "tools": [TOOL]}, response=answer, **ids)
        for i, (more, answer) in enumerate(answers)
    ]
    return Record(rollout=Rollout(rollout_id="r"), calls=calls)


@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        (called("calculate", '{"expression": "3 + 4"}'), 1),
        (called("calculate", '{"expression": 7}'), 0),
        (called("calculate", '{"expression": "3'), 0),
        (called("add", '{"expression": "3 + 4"}'), 0),
        ({"role": "assistant", "content": '{"expression": "3 + 4"}'}, 0),
    ],
)
def test_a_valid_call_has_an_offered_name_and_arguments_of_the_schema(answer: Any, valid: int) -> None:
    found = of_tools([record(([], answer))])
    assert (found["replies"], found["valid"]) == (1, valid)
    assert found["called"] == int("tool_calls" in answer)


@pytest.mark.parametrize(
    ("result", "said", "given", "used"),
    [
        ("7", "The answer is 7.", 1, 1),
        ("7", "The answer is 17.", 1, 0),
        ("error: the expression is empty", "7", 0, 0),
        ("3", "It is 3.", 0, 0),  # the task says it too
    ],
)
def test_a_result_is_used_if_the_last_answer_has_it(result: str, said: str, given: int, used: int) -> None:
    call = called("calculate", '{"expression": "3 + 4"}')
    told = [call, {"role": "tool", "tool_call_id": "1", "content": result}]
    found = of_tools([record(([], call), (told, {"role": "assistant", "content": said}))])
    assert (found["given_result"], found["used_result"]) == (given, used)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"expression": "3 + 4", "answer": 7}', 1),
        ('{"expression": "3 + 4"}', 0),
        ('{"expression": "3 + 4", "answer": "seven"}', 0),
        ("The answer is 7.", 0),
    ],
)
def test_an_answer_in_the_form_is_json_of_the_schema(text: str, valid: int) -> None:
    found = of_form([record(([], {"role": "assistant", "content": text}))])
    assert (found["asked"], found["valid"]) == (1, valid)
