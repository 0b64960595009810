"""Generated questions over real databases: twelve kinds of questions about one table, each with its gold SQL.

The tables, columns and values are those of eight databases of the Spider training set; the questions are not
Spider's. They are made from a few wordings, so that a network of half a million parameters can learn to read
them. The split is by *combination* (database, table, columns, kind), and thereby by gold SQL: a quarter of
the combinations is held out, and no gold SQL of a held-out question is ever trained on. Every gold query has
been run and returns something, and the mistake of its kind (see ``teacher``) returns something else; in a
few training questions the mistake is right nevertheless, because the rows tie.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import cycle, islice
from typing import Literal, NamedTuple, TypedDict

from spider.databases import find
from spider.sql.execution import SqlError, run
from spider.sql.matching import difference
from spider.sql.schema import Table, quoted, read
from spider.sql.tokens import orders

Split = Literal["train", "heldout"]
Kind = Literal[
    "count", "list", "max", "asc", "total", "avg", "min", "below", "highest", "lowest", "group", "desc"
]


class Question(TypedDict):
    """One item of a dataset, generated or real; plain JSON types, so it travels as a task unchanged."""

    id: str
    db_id: str
    question: str
    query: str
    """The gold SQL."""
    kind: str
    """Of a generated question; empty for a real one."""
    folder: str
    """Where the database lies; empty for the bundled ones."""


class Combination(NamedTuple):
    """What a question is about. ``a``: the column that is shown; ``n``: the one that is counted with."""

    kind: Kind
    database: str
    table: str
    a: str
    n: str


KINDS: tuple[Kind, ...] = (
    "count", "list", "max", "asc", "total", "avg", "min", "below", "highest", "lowest", "group", "desc",
)  # fmt: skip
DATABASES = (
    "loan_1", "manufactory_1", "movie_1", "music_1", "network_2", "soccer_2", "voter_2", "wine_1",
)  # fmt: skip

SQL: dict[Kind, str] = {
    "count": "SELECT count(*) FROM {t}",
    "list": "SELECT {a} FROM {t}",
    "max": "SELECT max({n}) FROM {t}",
    "asc": "SELECT {a} FROM {t} ORDER BY {n}",
    "total": "SELECT sum({n}) FROM {t}",
    "avg": "SELECT avg({n}) FROM {t}",
    "min": "SELECT min({n}) FROM {t}",
    "below": "SELECT {a} FROM {t} WHERE {n} < {v}",
    "highest": "SELECT {a} FROM {t} ORDER BY {n} DESC LIMIT 1",
    "lowest": "SELECT {a} FROM {t} ORDER BY {n} LIMIT 1",
    "group": "SELECT {a}, count(*) FROM {t} GROUP BY {a}",
    "desc": "SELECT {a} FROM {t} ORDER BY {n} DESC",
}
MISTAKES: dict[Kind, str] = {
    "total": "SELECT count({n}) FROM {t}",
    "avg": "SELECT average({n}) FROM {t}",
    "min": "SELECT max({n}) FROM {t}",
    "below": "SELECT {a} FROM {t} WHERE {n} > {v}",
    "highest": "SELECT TOP 1 {a} FROM {t} ORDER BY {n} DESC",
    "lowest": "SELECT {a} FROM {t} ORDER BY {n} DESC LIMIT 1",
    "group": "SELECT {a} FROM {t} GROUP BY {a}",
    "desc": "SELECT {a} FROM {t} ORDER BY {n}",
}
"""How each kind is usually got wrong. Two of the mistakes, of ``avg`` and ``highest``, do not even run."""

WORDINGS: dict[Kind, tuple[str, ...]] = {
    "count": ("How many {t} entries are there?", "Count the {t} entries."),
    "list": ("List the {a} of every {t}.", "What is the {a} of each {t}?"),
    "max": ("What is the largest {n} of any {t}?", "Find the maximum {n} among the {t} entries."),
    "asc": ("List the {a} of every {t}, smallest {n} first.", "Show each {t} by {a} in rising order of {n}."),
    "total": ("What is the total {n} of all {t} entries?", "Add up the {n} of every {t}."),
    "avg": ("What is the average {n} of a {t}?", "Find the mean {n} of the {t} entries."),
    "min": ("What is the smallest {n} of any {t}?", "Find the minimum {n} among the {t} entries."),
    "below": ("List the {a} of each {t} with {n} under {v}.", "Which {a} has a {t} whose {n} is below {v}?"),
    "highest": ("Which {a} has the {t} with the highest {n}?", "Give the {a} of the {t} with the most {n}."),
    "lowest": ("Which {a} has the {t} with the lowest {n}?", "Give the {a} of the {t} with the least {n}."),
    "group": ("How many {t} entries are there for each {a}?", "Count the {t} entries per {a}."),
    "desc": (
        "List the {a} of every {t}, largest {n} first.",
        "Show each {t} by {a} in falling order of {n}.",
    ),
}


def generate(split: Split, n: int, seed: int = 0) -> list[Question]:
    """``n`` questions, the kinds in turn; a shorter list with the same seed is a prefix of a longer one.

    No held-out question comes twice: ``ValueError`` if there are fewer than ``n`` of them. Training questions
    are drawn again and again.
    """
    if split not in ("train", "heldout"):
        raise ValueError(f"unknown split {split!r} of the generated questions: use 'train' or 'heldout'")
    if n < 0:
        raise ValueError(f"cannot generate {n} questions: n must be 0 or more")
    found = list(islice(questions(split, seed), n))
    if len(found) < n:
        raise ValueError(f"cannot generate {n} questions: there are only {len(found)} held-out ones")
    return found


def questions(split: Split, seed: int = 0) -> Iterator[Question]:
    """The stream of which ``generate`` takes the first ``n``: for training endless, else each one once."""
    rng = random.Random(f"spider:{split}:{seed}")
    asked = _shuffled(rng) if split == "heldout" else _drawn(rng)
    for index, (combination, wording, value) in enumerate(asked):
        yield Question(
            id=f"generated-{split}-{seed}-{index:05d}",
            db_id=combination.database,
            question=ask(combination, wording, value),
            query=fill(SQL[combination.kind], combination, value),
            kind=combination.kind,
            folder="",
        )


def _drawn(rng: random.Random) -> Iterator[tuple[Combination, int, int]]:
    """Combination, wording and value of training questions, the kinds in turn, for ever."""
    for kind in cycle(KINDS):
        combination = rng.choice(combinations(kind, "train"))
        value = rng.choice(_values(combination)) if kind == "below" else 0
        yield combination, rng.randrange(len(WORDINGS[kind])), value


def _shuffled(rng: random.Random) -> Iterator[tuple[Combination, int, int]]:
    """Every held-out question once, the kinds in turn; a kind of which all have been asked is passed over."""
    waiting: list[list[tuple[Combination, int, int]]] = []
    for kind in KINDS:
        every = [
            (combination, wording, value)
            for combination in combinations(kind, "heldout")
            for value in _values(combination)
            for wording in range(len(WORDINGS[kind]))
        ]
        told: dict[tuple[str, str], tuple[Combination, int, int]] = {}
        for one in rng.sample(every, len(every)):
            told.setdefault((one[0].database, ask(*one)), one)
        waiting.append(list(told.values()))
    for turn in range(max(map(len, waiting))):
        yield from (one[turn] for one in waiting if turn < len(one))


def ask(combination: Combination, wording: int, value: int = 0) -> str:
    """The text of a question."""
    names = {"t": words(combination.table), "a": words(combination.a), "n": words(combination.n), "v": value}
    return WORDINGS[combination.kind][wording].format(**names)


def fill(pattern: str, combination: Combination, value: int = 0) -> str:
    """A query of ``SQL`` or ``MISTAKES`` with the names of a combination."""
    return pattern.format(
        t=quoted(combination.table), a=quoted(combination.a), n=quoted(combination.n), v=value
    )


def words(name: str) -> str:
    """A name of the schema as one would say it: ``no_of_customers`` → no of customers."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()


@lru_cache(maxsize=64)
def combinations(kind: Kind, split: Split) -> tuple[Combination, ...]:
    """All combinations of a kind on one side of the split; by the order of their checksums, each fourth is
    held out.
    """
    every = (c for database in DATABASES for c in _combinations(kind, database))
    good = sorted(filter(_answerable, every), key=lambda c: zlib.crc32("/".join(c).encode()))
    return tuple(c for place, c in enumerate(good) if (place % 4 == 0) is (split == "heldout"))


@lru_cache(maxsize=4096)
def thresholds(combination: Combination) -> tuple[int, ...]:
    """Whole numbers of up to four digits that some rows are below and some are not."""
    (database,) = find(combination.database)
    n, t = quoted(combination.n), quoted(combination.table)
    rows = run(database, f"SELECT DISTINCT {n} FROM {t} ORDER BY {n}").rows
    values = [v for (v,) in rows if isinstance(v, int)]
    return tuple(v for v in values[1:-1] if 0 <= v < 10_000)[:12]


def _combinations(kind: Kind, database: str) -> Iterator[Combination]:
    for table in read(find(database)[0]):
        shown, counted = _columns(database, table)
        if kind == "count":
            yield Combination(kind, database, table.name, "", "")
        elif kind in ("list", "group"):
            yield from (Combination(kind, database, table.name, a, "") for a in shown)
        elif kind in ("max", "min", "avg", "total"):
            yield from (Combination(kind, database, table.name, "", n) for n in counted)
        else:
            yield from (
                Combination(kind, database, table.name, a, n) for a in shown for n in counted if a != n
            )


def _columns(database: str, table: Table) -> tuple[list[str], list[str]]:
    """The columns worth showing, and those that hold numbers one would count with: no keys."""
    names = [quoted(column.name) for column in table.columns]
    kinds = [f"group_concat(DISTINCT typeof({name}))" for name in names]
    types = run(
        find(database)[0],
        f"SELECT {', '.join(kinds)} FROM {quoted(table.name)}",
    ).rows[0]
    keys = {own for own, _, _ in table.links} | {column.name for column in table.columns if column.key}
    shown = [c.name for c, kind in zip(table.columns, types, strict=True) if "text" in str(kind)]
    counted = [
        column.name
        for column, kind in zip(table.columns, types, strict=True)
        if set(str(kind).split(",")) <= {"integer", "real"}
        and column.name not in keys
        and not re.search(r"(?i)(id|code|no|vote)$", column.name)
    ]
    return shown, counted


def _answerable(combination: Combination) -> bool:
    """The gold query returns something, and the mistake something else, or the same in another order.

    Ties are not looked at here: in a few training questions the mistake is right, because the rows tie.
    """
    database = find(combination.database)[0]
    values = _values(combination)
    if not values:
        return False
    gold = fill(SQL[combination.kind], combination, values[0])
    try:
        rows = run(database, gold).rows
    except SqlError:
        return False
    pattern = MISTAKES.get(combination.kind)
    if not rows or pattern is None:
        return bool(rows)
    try:
        mistaken = run(database, fill(pattern, combination, values[0])).rows
    except SqlError:
        return True
    return difference(rows, mistaken, orders(gold)) != ""


def _values(combination: Combination) -> tuple[int, ...]:
    """The values a question of this combination may ask for; one where it asks for none."""
    return thresholds(combination) if combination.kind == "below" else (0,)
