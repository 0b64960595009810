"""A scripted teacher that is wrong on purpose, and the chats it leaves, in worlds where no fact is true.

The teacher looks things up as :mod:`search.reader` does. On three of the five kinds of clues it makes the
*same* mistake with probability 0.8: it stops at the country that the clue leads to, and answers with its
name. It teaches in worlds whose facts are dealt anew among the countries, so that nothing but looking up is
learned: to answer by heart is always wrong. Names of countries that are held out occur in them too, so that
all names can be copied; their facts do not, but by chance.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

from search.agent import SYSTEM
from search.baselines import message
from search.corpus import Document, documents
from search.index import Index
from search.questions import ASKED, CLUES, FACTS, PARTNERS, QUESTION, countries
from search.reader import STOPS, UNKNOWN, Call, step

ERROR_RATE = 0.8
MISTAKES = ("peak", "prefix", "imports")
"""The kinds of clues on which it errs."""
LESSONS_OF_A_WORLD = 64
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {argument: {}}}}}
    for name, argument in (("search", "words"), ("read", "title"))
]
"""The agent's tools, as much of them as the chat template shows."""
Chat = dict[str, Any]
Reading = tuple[list[dict[str, Any]], dict[str, Any]]
"""A prompt whose last message is a document, and the reply to it."""


def world(dealt: random.Random) -> list[Document]:
    """The documents of all countries, each fact dealt anew among those that have it. Each largest partner is
    as frequent as another: of the true ones two countries are almost half, and would be guessed.
    """
    found = [*documents()]
    for label in {fact.label: fact for fact in FACTS.values()}.values():
        places = [i for i, one in enumerate(found) if label.section == one.section and label.line(one.text)]
        lines = [str(label.line(found[i].text)) for i in places]
        if label.label in {FACTS[kind].label for kind in PARTNERS}:
            by_partner: dict[str, list[str]] = {}
            for line in lines:
                if (partner := label.of(line)) in countries():
                    by_partner.setdefault(str(partner), []).append(line)
            lines = [dealt.choice(some) for some in dealt.choices([*by_partner.values()], k=len(places))]
        dealt.shuffle(lines)
        for i, line in zip(places, lines, strict=True):
            text = found[i].text.replace(str(label.line(found[i].text)), line)
            found[i] = replace(found[i], text=text)
    return found


def chats(seed: int, errs: float) -> Iterator[Chat]:
    """The endless stream of the teacher's chats, kinds of clues in turn. ``errs``: how often it makes a
    mistake that it can make.
    """
    for number in count():
        drawn = random.Random(f"search:teacher:{seed}:{errs}:{number}")
        found = world(drawn)
        index = Index(found)
        yield from islice(_lessons(found, index, drawn, errs), LESSONS_OF_A_WORLD)


def readings(lessons: Iterable[Chat], count: int) -> Iterator[Reading]:
    """The last ``count`` documents that each chat reads, of those that read so many: question, document, and
    what is said next, which stands in it.
    """
    for one in lessons:
        system, question, *turns = one["messages"]
        read = [i for i, turn in enumerate(turns) if called(turn) == "read"][-count:]
        if len(read) == count:
            yield from (([system, question, turns[i], turns[i + 1]], turns[i + 2]) for i in read)


def called(turn: dict[str, Any]) -> str | None:
    """The tool that a message calls."""
    return next((call["function"]["name"] for call in turn.get("tool_calls", ())), None)


def _lessons(found: Sequence[Document], index: Index, drawn: random.Random, errs: float) -> Iterator[Chat]:
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
            slips = {STOPS} if kind in MISTAKES and drawn.random() < errs else ()
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
