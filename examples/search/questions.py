"""Questions that need two documents, made from the corpus' own facts, and held out by country.

A question names a country by a clue, such as its highest point or who sells most to it, and asks for another
fact of it: the clue stands in one document, the answer in another. A question is kept only if no document has
both (:func:`two_needed`), if the index finds both (:func:`findable`), and if its clue fits one country alone.
The country that is asked about decides the split, and an answer that is held out is no answer in training.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from typing import Any, Literal

from search.corpus import documents
from search.grading import normalised
from search.index import factbook

Task = dict[str, Any]
Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class Fact:
    """A fact of a country: ``section`` and field it stands in, and the form of those that are asked about."""

    section: str
    label: str
    form: re.Pattern[str]
    name: str

    def of(self, text: str) -> str | None:
        """The fact in a document's text; None where it is missing, or not of a form that has one value."""
        value = self.form.fullmatch((self.line(text) or "").removeprefix(f"{self.label}: "))
        return value[1] if value else None

    def line(self, text: str) -> str | None:
        """The line of a document's text that the fact stands in."""
        return next((one for one in text.splitlines() if one.startswith(f"{self.label}: ")), None)


FACTS: dict[str, Fact] = {
    "capital": Fact("Government", "Capital", re.compile(r"([^();…]+)"), "capital"),
    "peak": Fact(
        "Geography", "highest point", re.compile(r"((?!unnamed)\D[^();…]*?) [\d,]+ m"), "highest point"
    ),
    "code": Fact(
        "Communications", "Internet country code", re.compile(r"(\.[a-z]{2})"), "Internet country code"
    ),
    "prefix": Fact(
        "Transportation",
        "Civil aircraft registration country code prefix",
        re.compile(r"([A-Z0-9-]{2,5})"),
        "aircraft prefix",
    ),
    "symbol": Fact("Government", "National symbol(s)", re.compile(r"([\w' -]+)"), "national symbol"),
    "exports": Fact("Economy", "Exports - partners", re.compile(r"([^\d;(<]+) <?\d+%.*"), ""),
    "imports": Fact("Economy", "Imports - partners", re.compile(r"([^\d;(<]+) <?\d+%.*"), ""),
}
"""The first partner of a country's trade is the largest: the Factbook orders them."""
ASKED = ("capital", "peak", "code", "prefix")
CLUES: dict[str, str] = {
    "peak": "whose highest point is {clue}",
    "prefix": "whose aircraft have the prefix {clue}",
    "symbol": "whose national symbol is the {clue}",
    "exports": "that {clue} exports most to",
    "imports": "that {clue} imports most from",
}
PARTNERS = ("exports", "imports")
"""Clues that are a country themselves, whose document names the one that is meant."""
QUESTION = "What is the {asked} of the country {clue}?"
HELD_OUT = 4
"""One country of so many is held out."""


def held_out(country: str) -> bool:
    """Whether questions about a country are for evaluation."""
    return zlib.crc32(country.encode()) % HELD_OUT == 0


@cache
def facts() -> Mapping[str, Mapping[str, str]]:
    """Fact → country → its value, for those that have one value."""
    found: dict[str, dict[str, str]] = {name: {} for name in FACTS}
    for one in documents():
        for name, fact in FACTS.items():
            if fact.section == one.section and (value := fact.of(one.text)):
                found[name][one.country] = value
    return found


@cache
def countries() -> Mapping[str, str]:
    """Every name of a country, as its documents' first line has them → the country."""
    found: dict[str, set[str]] = defaultdict(set)
    for one in documents():
        first = one.text.partition("\n")[0]
        for name in [*re.split(r", | or ", first), one.country]:
            found[name].add(one.country)
    return {name: owners.pop() for name, owners in found.items() if len(owners) == 1}


def questions() -> Iterator[Task]:
    """Every question, in the order of clues, countries and what is asked."""
    for clue in CLUES:
        values = facts()[clue]
        shared = Counter(map(normalised, values.values()))
        for holder, value in sorted(values.items()):
            if clue in PARTNERS:
                said, country = holder, countries().get(value)
            else:
                said, country = value, holder if shared[normalised(value)] == 1 else None
            if country is not None and country != said:
                yield from _about(clue, holder, said, country)


def _about(clue: str, holder: str, said: str, country: str) -> Iterator[Task]:
    """The questions about a country by one clue, which stands in a document of ``holder``."""
    for asked in ASKED:
        if answer := facts()[asked].get(country):
            words = CLUES[clue].format(clue=said)
            yield {
                "id": f"{clue}-{asked}-{holder}",
                "question": QUESTION.format(asked=FACTS[asked].name, clue=words),
                "answer": answer,
                "kind": clue,
                "asked": asked,
                "country": country,
                "clue": said,
                "documents": [f"{holder}: {FACTS[clue].section}", f"{country}: {FACTS[asked].section}"],
            }


def two_needed(task: Mapping[str, Any]) -> bool:
    """Whether no document of the corpus has both the clue and the answer."""
    return not _with(task["clue"]) & _with(task["answer"])


def findable(task: Mapping[str, Any]) -> bool:
    """Whether the index returns both documents: for clue and section, and for country and section."""
    clue, country = (title.rpartition(": ")[2] for title in task["documents"])
    looked_up = {*_found(f"{task['clue']} {clue}"), *_found(f"{task['country']} {country}")}
    return looked_up >= {*task["documents"]}


@cache
def _found(words: str) -> tuple[str, ...]:
    return tuple(one.title for one in factbook().best(words))


@cache
def _with(phrase: str) -> frozenset[str]:
    """The titles of the documents that have a phrase, whole words of it."""
    return frozenset(title for title, text in _texts().items() if _words(phrase) in text)


@cache
def _words(text: str) -> str:
    inner = " ".join(re.findall(r"\w+", normalised(text)))
    return f" {inner} "


@cache
def _texts() -> Mapping[str, str]:
    return {one.title: _words(f"{one.title}\n{one.text}") for one in documents()}


@cache
def kept() -> Mapping[Split, tuple[Task, ...]]:
    """The questions of each split that need two documents and can be looked up; none in training has an
    answer that is held out.
    """
    both = [one for one in questions() if two_needed(one) and findable(one)]
    out = tuple(one for one in both if held_out(one["country"]))
    answers = {normalised(one["answer"]) for one in out}
    trained = (one for one in both if not held_out(one["country"]))
    return {
        "train": tuple(one for one in trained if normalised(one["answer"]) not in answers),
        "heldout": out,
    }


def tasks(split: Split, limit: int | None = None, seed: int = 1) -> list[Task]:
    """Questions of a split: clues in turn and, within a clue, countries in turn, so that the great traders do
    not fill it.
    """
    mixed = random.Random(f"search:{seed}")
    by_kind: dict[str, dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
    for one in kept()[split]:
        by_kind[one["kind"]][one["country"]].append(one)
    columns = []
    for kind in by_kind.values():
        asked = list(kind.values())
        mixed.shuffle(asked)
        for column in asked:
            mixed.shuffle(column)
        columns.append([one for row in zip_longest(*asked) for one in row if one])
    dealt = [one for one in chain.from_iterable(zip_longest(*columns)) if one]
    return dealt[:limit]
