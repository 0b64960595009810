"""What the model reads: the instruction, the question, and solved problems in the few-shot form."""

from __future__ import annotations

import re
from functools import cache

from word_problems.problems import load

Message = dict[str, str]
SYSTEM = "Write the arithmetic expression that answers the question, and nothing else."
OPERATORS = "-+*/"


def prompt(question: str) -> list[Message]:
    """Return the messages for a question."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


def few_shot(question: str) -> list[Message]:
    """Return the messages for a question, with solved problems before it."""
    system, asked = prompt(question)
    return [system, *_examples(), asked]


def solved(question: str, expression: str) -> list[Message]:
    """Return the messages for a question with the right answer: a chat to fine-tune on."""
    return [*prompt(question), {"role": "assistant", "content": expression}]


@cache
def _examples() -> tuple[Message, ...]:
    """Return the first training problem with each operator alone, as turns of a chat."""
    turns: list[Message] = []
    for operator in OPERATORS:
        first = next(p for p in load("train") if re.sub(r"\d", "", p["expression"]) == operator)
        turns += solved(first["question"], first["expression"])[1:]
    return tuple(turns)
