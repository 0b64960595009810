"""Scripted policies that bound what there is to learn: ``factory(tasks) -> script``.

A script takes the body of a chat request and returns the answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from spider.oracle import Gold, Script, question_of, random_reply, reply, tables_of
from spider.prompts import CHECK, RIGHT, fenced
from spider.questions import SQL, WORDINGS, Question, words


def oracle(tasks: Sequence[Question]) -> Script:
    """The perfect policy for ``tasks``: the gold query, on every third question after a failing one."""
    gold = Gold(tasks)
    return lambda body: reply(body["messages"], gold)


def chance(tasks: Sequence[Question]) -> Script:
    """Some column of some table; the prompt is the seed."""
    return lambda body: random_reply(body["messages"], random.Random(str(body["messages"])))


def forms(tasks: Sequence[Question]) -> Script:
    """Two dozen patterns instead of a policy: the wordings of the generated questions, read backwards, with
    the names of the schema in the prompt; a review finds everything right.
    """

    def script(body: Mapping[str, Any]) -> str:
        messages = body["messages"]
        if str(messages[0]["content"]).startswith(CHECK):
            return f"{RIGHT}."
        return fenced(query_by_forms(question_of(messages), tables_of(messages)))

    return script


def query_by_forms(question: str, tables: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The query that a generated question asks for, over ``tables`` with their columns; for another text
    "SELECT 1".
    """
    for pattern, sql in _patterns():
        found = pattern.fullmatch(question)
        if found is None:
            continue
        said = found.groupdict()
        for table, columns in tables:
            names = {words(column): column for column in columns} | {"": ""}
            asked = {key: names.get(said.get(key, "")) for key in "an"}
            if words(table) == said["t"] and None not in asked.values():
                return sql.format(t=table, v=said.get("v", ""), **asked)
    return "SELECT 1"


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Each wording as a pattern with its query; longer ones first, since some begin like others."""
    found = []
    for kind, wordings in WORDINGS.items():
        for wording in wordings:
            parts = re.split(r"\{(\w)\}", wording)
            text = "".join(
                f"(?P<{part}>.+)" if place % 2 else re.escape(part) for place, part in enumerate(parts)
            )
            found.append((wording, re.compile(text), SQL[kind]))
    found.sort(key=lambda one: -len(one[0]))
    return tuple((pattern, sql) for _, pattern, sql in found)
