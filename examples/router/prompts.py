"""What the router's model reads: the question, and the databases by name or with their tables.

The databases of a prompt can be read back from it (``parse``), so that scripted policies see what a model
sees, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from router.databases import tables_of

Show = Literal["names", "tables"]
SHOWS: tuple[Show, ...] = get_args(Show)
INSTRUCTION = "Reply with the name of the database that can answer the question."
_NAMES = re.compile(r"Databases: (?P<names>[^\n]*)\nQuestion: (?P<question>.*)\Z", re.DOTALL)
_TABLES = re.compile(r"Databases:\n(?P<lines>(?:- [^\n]*\n)+)Question: (?P<question>.*)\Z", re.DOTALL)


class Asked(NamedTuple):
    """The content of a prompt."""

    question: str
    shown: dict[str, str]
    """Database → the text that the prompt shows of it."""


def to_route(question: str, databases: Sequence[str], show: Show = "names") -> list[dict[str, str]]:
    """Return the messages that ask which of ``databases`` can answer ``question``."""
    if show == "names":
        shown = f"Databases: {', '.join(databases)}"
    else:
        lines = (f"- {name}: {', '.join(table.name for table in tables_of(name))}" for name in databases)
        shown = "\n".join(["Databases:", *lines])
    return [
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": f"{shown}\nQuestion: {question}"},
    ]


def parse(messages: Sequence[Mapping[str, Any]]) -> Asked:
    """Return question and databases of a prompt. Raise ``ValueError`` for any other text."""
    text = str(messages[-1]["content"]) if messages else ""
    if found := _NAMES.match(text):
        return Asked(found["question"], {name: name for name in found["names"].split(", ")})
    if found := _TABLES.match(text):
        lines = found["lines"].removesuffix("\n").split("\n")
        return Asked(found["question"], {line[2:].partition(": ")[0]: line[2:] for line in lines})
    raise ValueError(f"this is no prompt of the router: {text[:80]!r}")
