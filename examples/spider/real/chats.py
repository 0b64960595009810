"""The training chats for ``agl sft``: each question with its tables, columns and plain gold query.

    agl sft --policy smollm2 --data spider.real.chats:train --val spider.real.chats:val --output DIR

One question in six comes again with a third answer: after a query in which one name was put in the place of
another, so that the database refuses it or returns nothing, and what the database says. The broken query is
context and is not learned (``weight: 0``).

Left out, and counted: questions whose gold query needs a name that the schema does not show any more
(``prompts.schema_of`` has the rule), because their answers would teach to invent names.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from router.datasets import questions
from spider.databases import databases_of
from spider.questions import Question
from spider.real.plain import plain, schema_names, written
from spider.real.prompts import NO_ROWS, WRITE, answered, complaint, linked, names_in, opening, schema_of
from spider.sql.execution import SqlError, run
from spider.sql.tokens import Token, meaningful

Chat = dict[str, Any]
BROKEN = 6
"""One question in so many comes again with a correction."""
VAL = 6
"""One held-out question in so many is enough for a loss."""
_log = logging.getLogger(__name__)


def train() -> list[Chat]:
    """Return the chats about the 70 databases on which policies are trained."""
    return chats("tuning:train")


def val() -> list[Chat]:
    """Return a sixth of those about the other 12 training databases, which are in no chat of training."""
    return chats("tuning:heldout", every=VAL)


def chats(spec: str, every: int = 1) -> list[Chat]:
    """Return the chats of a set of questions (``router.datasets``), or of one question in ``every``."""
    asked = questions(spec)[::every]
    kept = [question for question in asked if is_shown(question)]
    if len(kept) < len(asked):
        left = len(asked) - len(kept)
        _log.warning("%s: %d questions left out, whose gold query needs a name that was cut", spec, left)
    corrected = [found for question in kept[::BROKEN] if (found := correction(question))]
    return [*map(chat, kept), *corrected]


def is_shown(question: Question) -> bool:
    """Whether the schema in the prompt shows every name of the gold query."""
    database = databases_of(question)[0]
    used = names_in(plain(question["query"], database)) & schema_names(database)
    return used <= names_in(schema_of(database))


def chat(question: Question) -> Chat:
    """Return a question's conversation: its tables and columns, its query."""
    database = databases_of(question)[0]
    query = plain(question["query"], database)
    messages = answered(opening(database, question["question"]), linked(query, database), WRITE)
    return {"messages": [*messages, {"role": "assistant", "content": query}]}


def correction(question: Question) -> Chat | None:
    """Return the conversation with a query before the right one that the database refuses, or that returns
    nothing; ``None`` if none was found.
    """
    *messages, last = chat(question)["messages"]
    database = databases_of(question)[0]
    found = broken(last["content"], database, random.Random(question["id"]))
    if found is None:
        return None
    wrong = {"role": "assistant", "content": found[1], "weight": 0}
    return {"messages": [*messages, wrong, {"role": "user", "content": complaint(*found, database)}, last]}


def broken(query: str, database: Path, rng: random.Random) -> tuple[str, str] | None:
    """Return what the database says of a query with another name in the place of one, and that query;
    ``None`` if no such query was found that it refuses or that returns nothing.
    """
    names = sorted(schema_names(database))
    parts = meaningful(query)
    places = [i for i, part in enumerate(parts) if part.kind == "name" and part.text.strip('"') in names]
    for _ in range(8):
        place = rng.choice(places)
        wrong = _replaced(parts, place, _misnamed(parts[place].text, names, rng))
        try:
            said = "" if run(database, wrong).rows else NO_ROWS
        except SqlError as error:
            said = str(error)
        if said:
            return said, wrong
    return None


def _misnamed(name: str, names: Sequence[str], rng: random.Random) -> str:
    """Another name of the schema, or one that is made of two."""
    other = rng.choice(names)
    made = f"{name}_{other.rpartition('_')[2]}"
    return other if rng.random() < 0.5 else "".join(letter for letter in made if letter not in '" ')


def _replaced(parts: Sequence[Token], place: int, name: str) -> str:
    return written([*parts[:place], Token("name", name), *parts[place + 1 :]])
