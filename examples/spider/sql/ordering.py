"""Which rows of an ordered result may change places: those that are equal in everything ORDER BY names.

SQL leaves the order of tied rows open, and with LIMIT also which of them are in the result. The gold query is
therefore run twice more, without its LIMIT: once with its own columns, rising, behind its ORDER BY, and once
with them falling. Both results have the same rows up to the end of a *block* of tied rows, and only there
(or between equal rows). With LIMIT and no ORDER BY all rows tie. Ties inside a subquery are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spider.sql.execution import Limits, Row, SqlError, run
from spider.sql.tokens import Token, joined, meaningful


@dataclass(frozen=True, slots=True)
class Blocks:
    """The rows from which an ordered result may be taken, and where it may have them.

    ``numbers[i]`` is the block of ``rows[i]``; ``places[p]`` is the block that row ``p`` of a result must be
    of. A block that LIMIT or OFFSET cuts has more rows than places.
    """

    rows: list[Row]
    numbers: list[int]
    places: list[int]


def blocks(database: Path, sql: str, width: int, limits: Limits) -> Blocks | None:
    """The blocks of a query whose result has ``width`` columns; None if they cannot be told: it has neither
    ORDER BY nor LIMIT, its LIMIT is computed, or the longer result goes beyond the limits.
    """
    parts = meaningful(sql)
    limit = _last(parts, "LIMIT", len(parts))
    order = _last(parts[:limit], "ORDER", limit)
    window = _window(parts[limit + 1 :])
    if order == len(parts) or window is None:
        return None
    body = joined(parts[:limit]) + (" ORDER BY " if order == limit else " , ")
    columns = range(1, width + 1)
    try:
        rising = run(database, body + " , ".join(f"{c} ASC" for c in columns), limits).rows
        falling = run(database, body + " , ".join(f"{c} DESC" for c in columns), limits).rows
    except SqlError:
        return None
    numbers = list(_numbers(rising, falling))
    places = numbers[window]
    wanted = set(places)
    kept = [(row, number) for row, number in zip(rising, numbers, strict=True) if number in wanted]
    return Blocks([row for row, _ in kept], [number for _, number in kept], places)


def _numbers(rising: Sequence[Row], falling: Sequence[Row]) -> Iterator[int]:
    """For every row the number of its block."""
    ahead: Counter[Row] = Counter()
    number = 0
    for one, other in zip(rising, falling, strict=True):
        yield number
        for row, step in ((one, 1), (other, -1)):
            ahead[row] += step
            if not ahead[row]:
                del ahead[row]
        number += not ahead


def _window(words: Sequence[Token]) -> slice | None:
    """The rows that the words behind LIMIT choose; None if they are not plain numbers."""
    numbers, between = words[::2], [word.text.upper() for word in words[1::2]]
    if not all(word.text.isdigit() for word in numbers) or between not in ([], ["OFFSET"], [","]):
        return None
    if not numbers:
        return slice(None)
    count, start = int(numbers[0].text), int(numbers[1].text) if len(numbers) > 1 else 0
    if between == [","]:
        count, start = start, count
    return slice(start, start + count)


def _last(parts: Sequence[Token], word: str, otherwise: int) -> int:
    """The last place of a word outside of all parentheses."""
    depth, found = 0, otherwise
    for place, token in enumerate(parts):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.says(word):
            found = place
    return found
