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
    as_list = ordered(gold)
    target = want if as_list else Counter(want)
    for order in itertools.permutations(range(width)):
        turned = [tuple(row[i] for i in order) for row in have]
        if (turned if as_list else Counter(turned)) == target:
            return True
    return False


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
    """Without DISTINCT, and with ``> =`` and its like drawn together, outside of quotes."""
    pieces = QUOTED.split(sql)
    for place in range(0, len(pieces), 2):
        bare = re.sub(r"(?i)(?<!\w)(is\s+(?:not\s+)?)distinct(\s+from)(?!\w)", r"\1\0\2", pieces[place])
        bare = re.sub(r"(?i)(?<!\w)distinct(?!\w)", " ", bare).replace("\0", "distinct")
        bare = re.sub(r"(?i)year\s*\(\s*curdate\s*\(\s*\)\s*\)", "2020", bare)
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
