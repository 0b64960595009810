"""Scripts that look things up, without a model: they see the question and what the tools said, nothing else.

:func:`step` is a careful reader of two documents. With slips it is the small policy's teacher, and one that
stops after a document is a baseline.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from search.corpus import LINES
from search.questions import ASKED, CLUES, FACTS, PARTNERS, QUESTION

UNKNOWN = "unknown"
STOPS = "stops"
"""The slip of a reader who answers with the country that a clue leads to, and looks nothing up about it."""
OTHER = "other"
"""The slip of a reader who takes a country's exports for its imports."""


@dataclass(frozen=True)
class Asked:
    """What a question asks: a clue of a kind, and a fact."""

    kind: str
    clue: str
    fact: str


@dataclass(frozen=True)
class Call:
    """A call of a tool with its one argument."""

    tool: str
    argument: str


def understood(question: str) -> Asked:
    """What a question asks; ``ValueError`` for a text that is none of the questions."""
    for kind, clue in CLUES.items():
        for fact in ASKED:
            form = QUESTION.format(asked=FACTS[fact].name, clue=clue)
            before, after = form.split("{clue}")
            if question.startswith(before) and question.endswith(after):
                return Asked(kind, question[len(before) : len(question) - len(after)], fact)
    raise ValueError(f"this is no question of the example: {question!r}")


def step(question: str, said: Sequence[str], slips: Collection[str] = ()) -> Call | str:
    """The next call, or the answer, after what the tools ``said`` so far."""
    asked = understood(question)
    clue, fact = FACTS[asked.kind], FACTS[asked.fact]
    if not said:
        return Call("search", f"{asked.clue} {clue.section}")
    title = chosen(said[0], asked.clue if asked.kind in PARTNERS else "", clue.section)
    if title is None:
        return UNKNOWN
    if asked.kind in PARTNERS:
        if len(said) == 1:
            return Call("read", title)
        slipped = "exports" if OTHER in slips else asked.kind
        country = FACTS[slipped].of(said[1])
        rest = said[2:]
    else:
        country, rest = title.rpartition(": ")[0], said[1:]
    if country is None:
        return UNKNOWN
    if STOPS in slips:
        return country
    if not rest:
        return Call("search", f"{country} {fact.section}")
    if len(rest) == 1:
        title = chosen(rest[0], country, fact.section)
        return Call("read", title) if title else UNKNOWN
    return fact.of(rest[1]) or UNKNOWN


def chosen(hits: str, name: str, section: str) -> str | None:
    """The title among hits of a section: that of the country with a name, else the first that has all of the
    name's words in its line, else the first.
    """
    lines = [line for line in hits.splitlines() if LINES in line and line.split(LINES)[0].endswith(section)]
    wanted = set(re.findall(r"\w+", name))
    for line in lines:
        if line.split(LINES)[0] == f"{name}: {section}":
            return f"{name}: {section}"
    fitting = [line for line in lines if wanted <= set(re.findall(r"\w+", line))]
    return (fitting or lines or [LINES])[0].split(LINES)[0] or None
