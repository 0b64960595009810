"""A scripted teacher that is wrong on purpose, and the chat traces it leaves.

The teacher does everything right on ``add``, ``mul`` and ``mul_add``. On the other kinds it makes the *same*
mistake with probability 0.7: minus read as plus, the second step dropped, division written as multiplication.
Mistakes that are systematic leave a policy that mostly errs but sometimes does it right, which is what
reinforcement learning needs; random mistakes would average out. The prompts are the messages and tools that
the AutoGen agent sends, to the byte.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from calc_x.calculator import DESCRIPTION, calculate_text
from calc_x.grading import ANSWER_FORM
from calc_x.oracle import answer_message, call_message
from calc_x.problems import Problem, problems

ERROR_RATE = 0.7
MISTAKES: dict[str, str] = {
    "sub": "{0}+{1}",
    "mul_sub": "{0}*{1}+{2}",
    "add_sub": "{0}+{1}",
    "sub_div": "{0}-{1}",
    "div": "{0}*{1}",
}
"""The mistaken expression of each kind that has one, over the numbers in the order of the text."""

SYSTEM = (
    "You are a helpful AI assistant. Solve tasks using your tools. "
    "Reply with TERMINATE when the task has been completed."
)
"""The default system message of AutoGen 0.7's AssistantAgent."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": DESCRIPTION,
            "parameters": {
                "type": "object",
                "properties": {
                    "expression": {"description": "expression", "title": "Expression", "type": "string"}
                },
                "required": ["expression"],
                "additionalProperties": False,
            },
            "strict": False,
        },
    }
]
"""The calculator as AutoGen 0.7 describes it to a model."""


@dataclass(frozen=True)
class Example:
    """One model call of a trace: what was sent, and the assistant message to learn."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    reply: dict[str, Any]


def first_request(question: str) -> list[dict[str, Any]]:
    """The messages of the agent's first call; ``TOOLS`` go with them."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "name": "user", "content": f"{question}\n\n{ANSWER_FORM}"},
    ]


def second_request(question: str, call: dict[str, Any], result: str) -> list[dict[str, Any]]:
    """The messages of the second call, after the tool answered; AutoGen sends no tools with it."""
    call_id = call["tool_calls"][0]["id"]
    return [*first_request(question), call, {"role": "tool", "tool_call_id": call_id, "content": result}]


def teach(problem: Problem, mistaken: bool) -> tuple[Example, Example]:
    """Both calls of the teacher on a generated problem; ``mistaken`` has an effect on kinds that have a
    mistake.
    """
    expression = problem["expression"]
    if mistaken and problem["kind"] in MISTAKES:
        # In every kind the expression has the numbers in the order of the text.
        expression = MISTAKES[problem["kind"]].format(*re.findall(r"\d+", expression))
    question = problem["question"]
    call = call_message(expression)
    result = calculate_text(expression)
    first = Example(first_request(question), TOOLS, call)
    return first, Example(second_request(question, call, result), None, answer_message(result))


def traces(seed: int) -> Iterator[tuple[Example, Example]]:
    """The endless stream of traces over training problems; ``seed`` decides problems and mistakes."""
    rng = random.Random(f"calc_x:teacher:{seed}")
    for problem in problems("train", seed):
        yield teach(problem, mistaken=rng.random() < ERROR_RATE)
