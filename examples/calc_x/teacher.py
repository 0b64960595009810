"""A scripted teacher that is wrong on purpose, and the chat traces it leaves.

The teacher does everything right on ``add``, ``mul`` and ``mul_add``. On the other kinds it makes the *same*
mistake with probability 0.7: minus read as plus, the second step dropped, division written as multiplication.
Mistakes that are systematic leave a policy that mostly errs but sometimes does it right, which is what
reinforcement learning needs; random mistakes would average out. The prompts are the messages and tools that
the agent's framework sends (:class:`Wording`); by default those of the AutoGen agent, to the byte.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
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
class Wording:
    """How a framework puts a problem: ``system``, and what stands ``before`` and ``after`` it in the task.

    ``again``: the tools that go with the second call, after the tool has answered.
    """

    system: str
    tools: list[dict[str, Any]]
    before: str = ""
    after: str = f"\n\n{ANSWER_FORM}"
    again: list[dict[str, Any]] | None = None


AUTOGEN = Wording(SYSTEM, TOOLS)
"""AutoGen 0.7's AssistantAgent, which leaves the tools out when it reflects on their result."""


@dataclass(frozen=True)
class Example:
    """One model call of a trace: what was sent, and the assistant message to learn."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    reply: dict[str, Any]


def first_request(question: str, wording: Wording = AUTOGEN) -> list[dict[str, Any]]:
    """The messages of the agent's first call; the wording's ``tools`` go with them."""
    return [
        {"role": "system", "content": wording.system},
        {"role": "user", "name": "user", "content": f"{wording.before}{question}{wording.after}"},
    ]


def second_request(
    question: str, call: dict[str, Any], result: str, wording: Wording = AUTOGEN
) -> list[dict[str, Any]]:
    """The messages of the second call, after the tool answered; the wording's ``again`` goes with them."""
    answered = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": result}
    return [*first_request(question, wording), call, answered]


def expression_of(problem: Problem, mistaken: bool) -> str:
    """The teacher's expression for a generated problem; ``mistaken`` has an effect on kinds that have a
    mistake.
    """
    if mistaken and problem["kind"] in MISTAKES:
        # In every kind the expression has the numbers in the order of the text.
        return MISTAKES[problem["kind"]].format(*re.findall(r"\d+", problem["expression"]))
    return problem["expression"]


def teach(problem: Problem, mistaken: bool, wording: Wording = AUTOGEN) -> tuple[Example, Example]:
    """Both calls of the teacher on a generated problem."""
    expression = expression_of(problem, mistaken)
    question = problem["question"]
    call = call_message(expression)
    result = calculate_text(expression)
    first = Example(first_request(question, wording), wording.tools, call)
    second = Example(second_request(question, call, result, wording), wording.again, answer_message(result))
    return first, second


def traces(seed: int, wordings: Sequence[Wording] = (AUTOGEN,)) -> Iterator[tuple[Example, Example]]:
    """The endless stream of traces over training problems, the wordings in turn; ``seed`` decides problems
    and mistakes."""
    rng = random.Random(f"calc_x:teacher:{seed}")
    for problem, wording in zip(problems("train", seed), cycle(wordings), strict=False):
        yield teach(problem, rng.random() < ERROR_RATE, wording)
