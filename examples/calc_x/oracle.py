"""Scripted stand-ins for a model, speaking the chat protocol: the perfect one, and the aimless one.

Both see only what a model server sees, messages and tools, and return one assistant message. ``reply`` looks
the question up in the gold problems and answers perfectly: one right call of the calculator, then the gold
answer. ``random_reply`` calls the calculator with a random operation on random numbers of the question and
reports its result. Served in the place of a policy they show the room between chance and perfection, through
the real agent.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from calc_x.expression import ExpressionError, evaluate, render
from calc_x.grading import ANSWER_FORM, equal
from calc_x.problems import Problem

Message = Mapping[str, Any]
GoldLookup = Mapping[str, Problem]
"""Problems by their question."""


def gold_lookup(problems: Iterable[Problem]) -> dict[str, Problem]:
    """The lookup ``reply`` reads."""
    return {problem["question"].rstrip(): problem for problem in problems}


def reply(messages: Sequence[Message], tools: Sequence[Message] | None, gold: GoldLookup) -> dict[str, Any]:
    """The perfect next message; a ``KeyError`` naming the question when it is not in ``gold``."""
    problem = gold.get(question_of(messages))
    if problem is None:
        raise KeyError(f"the oracle does not know the question {question_of(messages)!r}")
    if tools and _last(messages).get("role") != "tool":
        return call_message(expression_for(problem))
    return answer_message(problem["result"])


def random_reply(
    messages: Sequence[Message], tools: Sequence[Message] | None, rng: random.Random
) -> dict[str, Any]:
    """A call of the calculator on random numbers of the question, or the answer it gave."""
    numbers = re.findall(r"\d+(?:\.\d+)?", question_of(messages)) or ["1"]
    if tools and _last(messages).get("role") != "tool":
        return call_message(f"{rng.choice(numbers)}{rng.choice('+-*/')}{rng.choice(numbers)}")
    result = _last(messages)
    return answer_message(text_of(result) if result.get("role") == "tool" else rng.choice(numbers))


def question_of(messages: Sequence[Message]) -> str:
    """The question of the first user message: its text without the sentence that asks for the form."""
    for message in messages:
        if message.get("role") == "user":
            return text_of(message).removesuffix(ANSWER_FORM).rstrip()
    raise ValueError("there is no user message to answer")


def expression_for(problem: Problem) -> str:
    """The problem's own expression if it evaluates to the gold answer, else the gold number itself."""
    try:
        if equal(render(evaluate(problem["expression"])), problem["result"]):
            return problem["expression"]
    except ExpressionError:
        pass  # the expression of a real set may be missing or no arithmetic; the gold number always serves
    return problem["result"] if any(c.isdigit() for c in problem["result"]) else "1"


def call_message(expression: str, call_id: str = "call_0") -> dict[str, Any]:
    """An assistant message that calls the calculator."""
    function = {"name": "calculate", "arguments": json.dumps({"expression": expression})}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answer_message(answer: str) -> dict[str, Any]:
    """An assistant message with the final answer in the asked form."""
    return {"role": "assistant", "content": f"### ANSWER: {answer} ###"}


def text_of(message: Message) -> str:
    """The text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def _last(messages: Sequence[Message]) -> Message:
    if not messages:
        raise ValueError("there are no messages to answer")
    return messages[-1]
