"""Execution match a second time, by other means: no lexer, no refinement, no limits worth the name.

Text is cut at its quotes with one regular expression and the rest is rewritten by regular expressions; the
nesting of parentheses is peeled off from the inside; results are compared by trying every order of columns.
It shares no line with the example's evaluator, and is only for well-meant queries: nothing protects it.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections import Counter

QUOTED = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/)""", re.DOTALL)


def agrees(gold: str, predicted: str, database: str) -> bool:
    """Whether ``predicted`` answers as ``gold`` does."""
    want = rows(gold, database)
    assert want is not None, gold
    have = rows(predicted, database)
    if have is None or len(want) != len(have):
        return False
    if not want:
        return True
    width = len(want[0])
    if width != len(have[0]):
        return False
    ranks = ranked(gold, width, database) if ordered(gold) else None
    for order in itertools.permutations(range(width)):
        turned = [tuple(row[i] for i in order) for row in have]
        if turned == want if ordered(gold) else Counter(turned) == Counter(want):
            return True
        if ranks and within(turned, ranks, gold) and within(want, ranks, gold):
            return True
    return False


def within(have: list[tuple], ranks: list[tuple], gold: str) -> bool:
    """Whether rows take no more of each rank than it has, and stand where that rank stands."""
    bare = "".join(" x " if place % 2 else piece for place, piece in enumerate(QUOTED.split(gold)))
    limit = re.search(r"(?i)\blimit\s+\d+(?:\s+offset\s+(\d+)|\s*,\s*\d+)?\s*;*\s*$", bare)
    start = int(limit[1] or 0) if limit else 0
    if len(have) > len(ranks) - start:
        return False
    left = Counter(ranks)
    for row, (*_, rank) in zip(have, ranks[start:], strict=False):
        left[(*row, rank)] -= 1
        if left[(*row, rank)] < 0:
            return False
    return True


def ranked(gold: str, width: int, database: str) -> list[tuple] | None:
    """All rows of an ordered query without its LIMIT, each with its rank by the ORDER BY as a last column."""
    sql = rewritten(gold)
    hidden = masked(sql)
    order = list(re.finditer(r"(?i)\border\s+by\b", hidden))[-1]
    limit = re.search(r"(?i)\blimit\b", hidden[order.end() :])
    end = order.end() + limit.start() if limit else len(sql)
    body, keys = sql[: order.start()], sql[order.end() : end]
    names = ", ".join(f"c{n}" for n in range(1, width + 1))
    numbered = re.sub(r"(?<![\w.])(\d+)(?![\w.])", r"c\1", keys)
    unqualified = re.sub(r"\b\w+\.(?=\w)", "", keys)
    one_select = not re.search(r"(?i)\b(union|intersect|except|distinct)\b", hidden[: order.start()])
    start = re.search(r"(?i)\bfrom\b", hidden)
    rank = "dense_rank() OVER (ORDER BY {}) AS r"
    tries = [f"WITH g({names}) AS ({body}) SELECT *, {rank.format(numbered)} FROM g ORDER BY r"]
    if numbered == keys:  # a number would be a constant here
        tries.insert(0, f"SELECT *, {rank.format(unqualified)} FROM ({body}) ORDER BY r")
        if one_select and start:
            beside = f", {rank.format(keys)} "
            tries.insert(0, f"{body[: start.start()]}{beside}{body[start.start() :]} ORDER BY r")
    return next((found for found in (rows(text, database) for text in tries) if found), None)


def masked(sql: str) -> str:
    """The text with all that is quoted or in parentheses blotted out; every other letter keeps its place."""
    bare = "".join("#" * len(p) if place % 2 else p for place, p in enumerate(QUOTED.split(sql)))
    while re.search(r"\([^()]*\)", bare):
        bare = re.sub(r"\([^()]*\)", lambda found: "#" * len(found[0]), bare)
    return bare


def rows(sql: str, database: str) -> list[tuple] | None:
    """What SQLite answers, ``None`` if it refuses."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    connection.text_factory = lambda raw: str(raw, "utf-8", "replace")
    budget = itertools.count()
    connection.set_progress_handler(lambda: next(budget) > 20_000, 1_000)
    try:
        cursor = connection.execute(rewritten(sql))
        return cursor.fetchall() if cursor.description else None
    except (sqlite3.Error, sqlite3.Warning):
        return None
    finally:
        connection.close()


def rewritten(sql: str) -> str:
    """With ``> =`` and its like drawn together, outside of quotes, and without empty statements around it."""
    sql = re.sub(r"(?:\s|;)+\Z", "", re.sub(r"\A(?:\s|;)+", "", sql))
    pieces = QUOTED.split(sql)
    for place in range(0, len(pieces), 2):
        bare = re.sub(r"(?i)year\s*\(\s*curdate\s*\(\s*\)\s*\)", "2020", pieces[place])
        pieces[place] = re.sub(r"([<>!])\s+=", r"\1=", re.sub(r"<\s+>", "<>", bare))
    return "".join(pieces)


def ordered(sql: str) -> bool:
    """Whether ORDER BY stands outside of all parentheses."""
    bare = "".join(" x " if place % 2 else piece for place, piece in enumerate(QUOTED.split(sql)))
    while True:
        peeled = re.sub(r"\([^()]*\)", " ", bare)
        if peeled == bare:
            return re.search(r"(?i)(?<!\w)order\s+by(?!\w)", bare) is not None
        bare = peeled
