"""Scripted policies that bound what there is to learn: ``factory(tasks) -> script``.

A script takes the body of a chat request and returns the assistant message.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from calc_x.oracle import gold_lookup, question_of, random_reply, reply
from calc_x.problems import Problem

Script = Callable[[Mapping[str, Any]], dict[str, Any]]


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
