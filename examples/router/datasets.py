"""Real questions of Spider as tasks of the router: four databases, one of which the question was asked about.

Questions of the training set are asked about 82 databases, those of the development set about 13 others.
The distractors of a question come from the databases of its own set, so no database of the development set
is ever seen in training. Settings are chosen on ``tuning:heldout``, the questions about 12 training
databases, after training on ``tuning:train``, the questions about the other 70.

Invariant: a task's distractors, their kind and the order of its databases are a function of the set, the
question and ``seed``.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from functools import cache
from typing import TypedDict

from router.databases import DATA, FOLDERS
from router.distractors import KINDS, Kind, draw
from router.prompts import SHOWS, Show
from spider.datasets import SAMPLES, DatasetError, read
from spider.questions import Question

OFFERED = 4
"""Databases that a task offers."""
SETS = ("train", "dev", "tuning:train", "tuning:heldout")


class Task(TypedDict):
    """One question for the router; plain JSON."""

    id: str
    question: str
    databases: list[str]
    """The databases on offer, in random order."""
    answer: str
    """The database that the question was asked about."""
    kind: Kind
    """The kind of the distractors."""
    show: Show
    """What the model is shown of each database."""


def load(
    spec: str,
    limit: int | None = None,
    kinds: Sequence[Kind] = KINDS,
    show: Show = "names",
    seed: int = 0,
) -> list[Task]:
    """Return the tasks of a set (``SETS``), the kinds of distractors in turn.

    ``limit``: that many tasks, drawn at random. Raise ``DatasetError`` for an unknown set, kind or form.
    """
    if show not in SHOWS:
        raise DatasetError(f"show is {show!r}: choose from {', '.join(SHOWS)}")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise DatasetError(f"unknown kind of distractors {unknown[0]!r}: choose from {', '.join(KINDS)}")
    if not kinds:
        raise DatasetError(f"kinds is empty: give one or more of {', '.join(KINDS)}")
    if limit is not None and limit < 0:
        raise DatasetError(f"limit is {limit}: it must be 0 or more")
    asked = questions(spec)
    pool = sorted({question["db_id"] for question in asked})
    tasks = [
        task_of(question, pool, kinds[position % len(kinds)], show, seed)
        for position, question in enumerate(asked)
    ]
    if limit is not None and limit < len(tasks):
        tasks = random.Random(f"router:{spec}:{seed}").sample(tasks, limit)
    return tasks


def task_of(question: Question, pool: Sequence[str], kind: Kind, show: Show, seed: int) -> Task:
    """Return the task of a question, with distractors of ``kind`` from ``pool``."""
    rng = random.Random(f"router:{seed}:{kind}:{question['id']}")
    databases = [question["db_id"], *draw(question["db_id"], pool, kind, OFFERED - 1, rng)]
    rng.shuffle(databases)
    return Task(
        id=question["id"],
        question=question["question"],
        databases=databases,
        answer=question["db_id"],
        kind=kind,
        show=show,
    )


@cache
def questions(spec: str) -> tuple[Question, ...]:
    """Return the questions of a set (``SETS``) with gold SQL; a file is read once."""
    if spec not in SETS:
        raise DatasetError(f"unknown set {spec!r}: choose from {', '.join(SETS)}")
    if spec == "dev":
        return tuple(read(SAMPLES / "dev.jsonl"))
    if spec == "train":
        return tuple(read(DATA / "train.jsonl", FOLDERS))
    held_out = spec == "tuning:heldout"
    return tuple(question for question in questions("train") if is_tuning(question["db_id"]) is held_out)


def is_tuning(database: str) -> bool:
    """Whether a training database is held out when settings are chosen: about one in seven, by checksum."""
    return zlib.crc32(f"router:{database}".encode()) % 7 == 5
