"""Scripted stand-ins for a model, speaking the chat protocol: the perfect one, and the aimless one.

Both see only what a model server sees, the messages, and return one answer. The perfect one stumbles on every
third question, on purpose: its first query does not run, its review says so, and its correction is right. So
a run with it goes through every node of the agent.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spider.databases import databases_of
from spider.prompts import CHECK, REWRITE, RIGHT, WRITE, WRONG, fenced, query_in
from spider.questions import Question
from spider.sql.schema import quoted, read

Message = Mapping[str, Any]
Script = Callable[[Mapping[str, Any]], str]

_QUESTION = re.compile(r"Question: (.*?)(?:\n\nQuery:\n|\Z)", re.DOTALL)
_TABLE = re.compile(r"^(?:CREATE TABLE )?(\w+|\"[^\"]+\") \((.*)\)$", re.MULTILINE)
_CONSTRAINT = re.compile(r",? ?FOREIGN KEY .*")


class Gold:
    """The gold query to a question: by its text, and by the schema where the text is not enough."""

    def __init__(self, tasks: Iterable[Question]) -> None:
        self._by_text: dict[str, list[tuple[frozenset[str], str]]] = defaultdict(list)
        for task in tasks:
            tables = frozenset(quoted(table.name) for table in read(databases_of(task)[0]))
            if (tables, task["query"]) not in self._by_text[task["question"]]:
                self._by_text[task["question"]].append((tables, task["query"]))

    def query(self, messages: Sequence[Message]) -> str:
        """``KeyError`` for a question that is not among the tasks."""
        question = question_of(messages)
        known = self._by_text.get(question, [])
        if len(known) > 1:
            shown = {name for name, _ in tables_of(messages)}
            known = [(tables, query) for tables, query in known if tables == shown]
        if not known:
            raise KeyError(f"the oracle does not know the question {question!r}")
        return known[0][1]


def reply(messages: Sequence[Message], gold: Gold) -> str:
    """The perfect answer to a prompt of the agent."""
    instruction, query = str(messages[0]["content"]), gold.query(messages)
    if instruction.startswith(CHECK):
        tried = query_in(str(messages[-1]["content"]))
        return f"{RIGHT}." if tried == query.strip() else f"It does not run.\n{WRONG}."
    if instruction.startswith(WRITE) and stumbles(question_of(messages)):
        return fenced(f"SELECT {query}")
    if instruction.startswith((WRITE, REWRITE)):
        return fenced(query)
    raise ValueError(f"this is no prompt of the agent: {instruction[:80]!r}")


def stumbles(question: str) -> bool:
    """Whether the perfect model's first query to a question fails."""
    return zlib.crc32(question.encode()) % 3 == 0


def random_reply(messages: Sequence[Message], rng: random.Random) -> str:
    """Some column of some table; a review finds everything right."""
    if str(messages[0]["content"]).startswith(CHECK):
        return f"{RIGHT}."
    name, columns = rng.choice(tables_of(messages))
    return fenced(f"SELECT {rng.choice(columns)} FROM {name}")


def question_of(messages: Sequence[Message]) -> str:
    """The question of a prompt of the agent."""
    found = _QUESTION.match(str(messages[-1]["content"])) if messages else None
    if found is None:
        raise ValueError("there is no question in the last message")
    return found[1]


def tables_of(messages: Sequence[Message]) -> list[tuple[str, list[str]]]:
    """The tables of the schema in a prompt of the agent, with their columns."""
    found = _TABLE.findall(str(messages[0]["content"]))
    # A type may hold commas of its own, in parentheses.
    columns = (re.split(r", (?![^()]*\))", _CONSTRAINT.sub("", inner)) for _, inner in found)
    return [(name, [c.split(" ")[0] for c in cs]) for (name, _), cs in zip(found, columns, strict=True)]
