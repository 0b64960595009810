"""The words of names and of questions, in a form in which they can be compared.

A word is a run of letters in lower case without the ending of a plural, so that ``Singer_ID``, "singers" and
``singer`` share the word "singer". Numbers and single letters are no words.
"""

from __future__ import annotations

import re
from functools import cache

from router.databases import tables_of

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
STOP_WORDS = frozenset([
    "all", "also", "an", "and", "any", "are", "as", "at", "be", "by", "can", "did", "do", "does", "each",
    "every", "find", "for", "from", "give", "had", "has", "have", "how", "in", "is", "it", "its", "list",
    "many", "me", "no", "not", "number", "of", "on", "one", "or", "our", "return", "show", "tell", "than",
    "that", "the", "their", "them", "there", "these", "they", "this", "those", "to", "was", "we", "were",
    "what", "when", "where", "which", "who", "whose", "will", "with", "you",
])  # fmt: skip
"""Words that a question has whatever it is about."""


@cache
def words(text: str) -> frozenset[str]:
    """Return the words of a name or a sentence."""
    return frozenset(_singular(word.lower()) for word in _WORD.findall(text) if len(word) > 1)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    plural = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
    return word[:-1] if plural else word


def content_words(question: str) -> frozenset[str]:
    """Return the words of a question that say what it is about."""
    return words(question) - words(" ".join(STOP_WORDS))


@cache
def schema_words(database: str) -> frozenset[str]:
    """Return the words of a database's name, of its tables' names and of its columns' names."""
    names = [database]
    for table in tables_of(database):
        names += [table.name, *(column.name for column in table.columns)]
    return frozenset().union(*map(words, names))
