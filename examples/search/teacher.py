"""A scripted teacher that is wrong on purpose, and the chats it leaves, in worlds where no fact is true.

The teacher looks things up as :mod:`search.reader` does. On three of the five kinds of clues it makes the
*same* mistake with probability 0.7: it stops at the country that the clue leads to, or takes exports for
imports. It teaches in worlds whose facts are dealt anew among the countries that are not held out, so that
nothing but looking up is learned: to answer by heart is always wrong. In every other world countries and
values have made-up names, so that what was never read before can be copied too.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

from search.agent import SYSTEM
from search.baselines import message
from search.corpus import Document, documents
from search.index import Index
from search.questions import ASKED, CLUES, FACTS, PARTNERS, QUESTION, Fact, countries, held_out
from search.reader import OTHER, STOPS, UNKNOWN, Call, step

ERROR_RATE = 0.7
MISTAKES = {"peak": STOPS, "prefix": STOPS, "imports": OTHER}
"""The slip on each kind of clue that has one."""
LESSONS_OF_A_WORLD = 64
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {argument: {}}}}}
    for name, argument in (("search", "words"), ("read", "title"))
]
"""The agent's tools, as much of them as the chat template shows."""
Chat = dict[str, Any]


def world(dealt: random.Random) -> list[Document]:
    """The documents of the countries that are not held out, each fact dealt anew among those that have it."""
    found = [one for one in documents() if not held_out(one.country)]
    for label in {fact.label: fact for fact in FACTS.values()}.values():
        places = [i for i, one in enumerate(found) if label.section == one.section and label.line(one.text)]
        lines = [str(label.line(found[i].text)) for i in places]
        if label.label in {FACTS[kind].label for kind in PARTNERS}:
            known = [line for line in lines if _known(label, line)]
            lines = dealt.choices(known, k=len(places))
        dealt.shuffle(lines)
        for i, line in zip(places, lines, strict=True):
            text = found[i].text.replace(str(label.line(found[i].text)), line)
            found[i] = replace(found[i], text=text)
    return found


def renamed(found: Sequence[Document], drawn: random.Random) -> list[Document]:
    """The documents with made-up names of countries and values: each is the first half of its own and the
    second half of another one of its kind.
    """
    names = sorted({one.country for one in found})
    new: dict[str, str] = {}
    for name in names:
        made = name
        while made in names or made in new.values():
            made = _spliced(name, drawn.choice(names))
        new[name] = made
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})\b")
    values = {
        kind: sorted({value for one in found if (value := fact.of(one.text))})
        for kind, fact in FACTS.items()
        if kind not in PARTNERS
    }
    made_up = []
    for one in found:
        text = named.sub(lambda match: new[match[0]], one.text)
        for kind, known in values.items():
            if value := FACTS[kind].of(one.text):
                line = str(FACTS[kind].line(one.text))
                other = line.replace(value, _spliced(value, drawn.choice(known)), 1)
                if FACTS[kind].of(other):
                    text = text.replace(str(FACTS[kind].line(text)), other)
        made_up.append(Document(f"{new[one.country]}: {one.section}", text))
    return made_up


def _spliced(one: str, other: str) -> str:
    return one[: (len(one) + 1) // 2] + other[(len(other) + 1) // 2 :]


def _known(fact: Fact, line: str) -> bool:
    """Whether the first partner in a line is a country that is not held out."""
    country = countries().get(fact.of(line) or "")
    return country is not None and not held_out(country)


def chats(seed: int) -> Iterator[Chat]:
    """The endless stream of the teacher's chats, kinds of clues in turn."""
    for number in count():
        drawn = random.Random(f"search:teacher:{seed}:{number}")
        found = world(drawn)
        if number % 2:
            found = renamed(found, drawn)
        index = Index(found)
        yield from islice(_lessons(found, index, drawn), LESSONS_OF_A_WORLD)


def _lessons(found: Sequence[Document], index: Index, drawn: random.Random) -> Iterator[Chat]:
    by_kind = {
        kind: [(one, said) for one in found if one.section == FACTS[kind].section
               if (said := FACTS[kind].of(one.text))]
        for kind in CLUES
    }  # fmt: skip
    while True:
        for kind, holders in by_kind.items():
            one, said = drawn.choice(holders)
            clue = CLUES[kind].format(clue=one.country if kind in PARTNERS else said)
            asked = drawn.choice([fact for fact in ASKED if FACTS[fact].section != FACTS[kind].section])
            question = QUESTION.format(asked=FACTS[asked].name, clue=clue)
            slips = {MISTAKES[kind]} if kind in MISTAKES and drawn.random() < ERROR_RATE else ()
            if lesson := chat(question, index, slips):
                yield lesson


def chat(question: str, index: Index, slips: set[str] | tuple[()] = ()) -> Chat | None:
    """The teacher's messages on a question; None where the search led nowhere."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
    ]
    said: list[str] = []
    while isinstance(done := step(question, said, slips), Call):
        said.append(getattr(index, done.tool)(done.argument))
        number = f"call_{len(said)}"
        messages += [
            message(done, number),
            {"role": "tool", "tool_call_id": number, "content": said[-1]},
        ]
    return None if done == UNKNOWN else {"messages": [*messages, message(done)], "tools": TOOLS}
