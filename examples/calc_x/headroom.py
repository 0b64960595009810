"""Scripted policies that bound what there is to learn: ``factory(tasks) -> script``.

A script takes the body of a chat request and returns the assistant message.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calc_x.oracle import answer_message, call_message, gold_lookup, question_of, random_reply, reply, text_of
from calc_x.problems import Problem

Script = Callable[[Mapping[str, Any]], dict[str, Any]]
VERBS = {
    "+": re.compile("buys|brings|finds"),
    "-": re.compile("gives|lost|sells"),
    "*": re.compile("in each box|into every bag"),
    "/": re.compile("shares|packed"),
}
"""Sign → words of the generated problems that ask for it."""


def oracle(tasks: Sequence[Problem]) -> Script:
    """The perfect policy for ``tasks``: the right expression, then the gold answer."""
    gold = gold_lookup(tasks)
    return lambda body: reply(body["messages"], body.get("tools"), gold)


def chance(tasks: Sequence[Problem]) -> Script:
    """A random operation on random numbers of the question; the question is the seed."""

    def script(body: Mapping[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        return random_reply(messages, body.get("tools"), random.Random(question_of(messages)))

    return script


def verbs(tasks: Sequence[Problem]) -> Script:
    """A dozen words instead of a policy: the number of a sentence joins those before by ``VERBS``."""

    def script(body: Mapping[str, Any]) -> dict[str, Any]:
        last = body["messages"][-1]
        if body.get("tools") and last["role"] != "tool":
            return call_message(expression_by_verbs(question_of(body["messages"])))
        return answer_message(text_of(last))

    return script


def expression_by_verbs(question: str) -> str:
    """The expression of a generated problem, by ``VERBS``; of another text, some of its numbers."""
    expression = ""
    for sentence in re.split(r"(?<=[.?])\s", question):
        numbers = re.findall(r"\d+", sentence)
        signs = [sign for sign, words in VERBS.items() if words.search(sentence)]
        joined = (signs or ["+"])[0].join(numbers)
        if expression and numbers:
            joined = f"({expression}){(signs or ['+'])[0]}{joined}"
        expression = joined or expression
    return expression or "0"
