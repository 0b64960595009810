"""Real questions of Spider as tasks of the router: four databases, one of which the question was asked about.

Questions of the training set are asked about 82 databases, those of the development set about 13 others.
The distractors of a question come from the databases of its own set, so no database of the development set
is ever seen in training. Settings are chosen on ``tuning:heldout``, the questions about 12 training
databases, after training on ``tuning:train``, the questions about the other 70.

Thirteen databases say little about others. The 70 databases on which no setting was chosen are therefore also
parted in two halves: ``half:0:heldout`` is held out by ``half:0:train``, which has the other half and the 12,
and so for ``half:1``.

Invariant: a task's distractors, their kind and the order of its databases are a function of the set, the
question and ``seed``.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from functools import cache
from typing import TypedDict

from agentlightning.algorithms.tasks import DatasetError
from router.databases import DATA, FOLDERS
from router.distractors import KINDS, Kind, draw
from router.prompts import SHOWS, Show
from spider.datasets import SAMPLES, read
from spider.questions import Question

OFFERED = 4
"""Databases that a task offers."""
HALVES = 2
SETS = (
    "train", "dev", "tuning:train", "tuning:heldout",
    *(f"half:{half}:{part}" for half in range(HALVES) for part in ("train", "heldout")),
)  # fmt: skip


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
    per_database: int | None = None,
) -> list[Task]:
    """Return the tasks of a set (``SETS``), the kinds of distractors in turn.

    ``limit``: that many tasks, drawn at random. ``per_database``: at most that many about one database, drawn
    at random before. Raise ``DatasetError`` for an unknown set, kind or form.
    """
    if show not in SHOWS:
        raise DatasetError(f"show is {show!r}: choose from {', '.join(SHOWS)}")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise DatasetError(f"unknown kind of distractors {unknown[0]!r}: choose from {', '.join(KINDS)}")
    if not kinds:
        raise DatasetError(f"kinds is empty: give one or more of {', '.join(KINDS)}")
    for name, least in (("limit", limit), ("per_database", per_database)):
        if least is not None and least < 0:
            raise DatasetError(f"{name} is {least}: it must be 0 or more")
    asked = questions(spec)
    pool = sorted({question["db_id"] for question in asked})
    if per_database is not None:
        asked = _at_most(asked, per_database, random.Random(f"router:{spec}:{seed}:{per_database}"))
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
    name, _, part = spec.rpartition(":")
    held_out = is_tuning if name == "tuning" else lambda database: half_of(database) == int(name[-1])
    return tuple(q for q in questions("train") if held_out(q["db_id"]) is (part == "heldout"))


def is_tuning(database: str) -> bool:
    """Whether a training database is held out when settings are chosen: about one in seven, by checksum."""
    return zlib.crc32(f"router:{database}".encode()) % 7 == 5


def half_of(database: str) -> int | None:
    """Return which half holds a training database out, by the order of checksums; ``None`` for those on which
    settings are chosen.
    """
    return _halves().get(database)


@cache
def _halves() -> dict[str, int]:
    names = {question["db_id"] for question in questions("tuning:train")}
    order = sorted(names, key=lambda name: zlib.crc32(f"half:{name}".encode()))
    return {name: place % HALVES for place, name in enumerate(order)}


def _at_most(asked: Sequence[Question], n: int, rng: random.Random) -> tuple[Question, ...]:
    """Return at most ``n`` questions about each database, drawn at random, in their order."""
    by_database: dict[str, list[Question]] = {}
    for question in asked:
        by_database.setdefault(question["db_id"], []).append(question)
    kept = [one for own in by_database.values() for one in (rng.sample(own, n) if n < len(own) else own)]
    ids = {question["id"] for question in kept}
    return tuple(question for question in asked if question["id"] in ids)
