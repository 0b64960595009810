"""Execution match: does a query answer as the gold query does? The reward of the agent, 1.0 or 0.0.

Both queries are run as they are written, and the results must agree as bags of rows, up to the order of
columns. Where the outermost gold query says ORDER BY, rows must come in its order; rows that tie there may
come in any, and with LIMIT any of those that tie for the last places will do (``spider.sql.ordering``).
DISTINCT counts: a query that lacks it, or has it needlessly, is wrong where that changes the result. Two
empty results agree. Values are equal as Python says: 1 is 1.0 and not '1', NULL is NULL.

Invariant: the answer is a function of the two texts and the files, and a gold query that cannot be run is an
error of the data (:class:`GoldError`), never a wrong answer of the agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spider.sql.execution import LIMITS, Limits, Result, Row, SqlError, run
from spider.sql.ordering import blocks
from spider.sql.tokens import meaningful, orders, trimmed

TRIES = 20_000
"""Column orders that are looked into before two results count as different."""


class GoldError(Exception):
    """A gold query that cannot be run: the data are broken, or the limits too small."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether two queries match, and if not, why."""

    match: bool
    reason: str = ""

    @property
    def reward(self) -> float:
        return 1.0 if self.match else 0.0


def match(gold: str, predicted: str, databases: Sequence[Path], limits: Limits = LIMITS) -> Verdict:
    """Compare on every database; the first disagreement is the verdict. Blocks: run it in a thread."""
    if not databases:
        raise GoldError("there is no database to run the gold query on")
    ordered = orders(gold)
    for database in databases:
        try:
            expected = run(database, plain(gold), limits)
        except SqlError as error:
            raise GoldError(f"{database.name}: the gold query {gold!r} fails: {error}") from None
        try:
            found = run(database, plain(predicted), limits).rows
        except SqlError as error:
            return Verdict(False, f"it fails: {error}")
        reason = difference(expected.rows, found, ordered)
        if reason and not _tied(database, gold, expected, found, limits):
            return Verdict(False, reason)
    return Verdict(True)


def _tied(database: Path, gold: str, expected: Result, found: Sequence[Row], limits: Limits) -> bool:
    """Whether rows differ from the gold query's only where these tie."""
    if len(found) != len(expected.rows) or not found or len(found[0]) != len(expected.columns):
        return False
    tied = blocks(database, plain(gold), len(expected.columns), limits)
    if tied is None or len(tied.places) != len(found):
        return False
    # The gold query's own rows must pass, else the blocks are not those of its result.
    return not any(
        _Columns(tied.rows, rows, tied.numbers, tied.places).search() for rows in (expected.rows, found)
    )


# --------------------------------------------------------------------------------------------------- texts
_SPLIT_SIGNS = {(">", "="), ("<", "="), ("!", "="), ("<", ">")}
_THIS_YEAR = ["YEAR", "(", "CURDATE", "(", ")", ")"]


def plain(sql: str) -> str:
    """``sql`` as it is run: ``> =`` as ``>=``, YEAR(CURDATE()) as 2020, and no semicolons around it.

    These are conventions of the data's gold queries. Strings, quoted names and comments are left alone.
    """
    parts = meaningful(trimmed(sql))
    kept: list[str] = []
    place = 0
    while place < len(parts):
        token = parts[place]
        if [part.text.upper() for part in parts[place : place + 6]] == _THIS_YEAR:
            kept.append("2020")
            place += 6
            continue
        if (
            place
            and (parts[place - 1].text, token.text) in _SPLIT_SIGNS
            and kept[-1] == parts[place - 1].text
        ):
            kept[-1] += token.text
        else:
            kept.append(token.text)
        place += 1
    return " ".join(kept)


# ------------------------------------------------------------------------------------------------- results
def difference(gold: Sequence[Row], found: Sequence[Row], ordered: bool) -> str:
    """Why two results are not the same; empty if they are."""
    if not gold and not found:
        return ""
    if len(gold) != len(found):
        return f"{len(found)} rows instead of {len(gold)}"
    if len(gold[0]) != len(found[0]):
        return f"{len(found[0])} columns instead of {len(gold[0])}"
    if ordered:
        # Rows keep their place, so columns may be looked at one by one.
        if Counter(zip(*gold, strict=True)) == Counter(zip(*found, strict=True)):
            return ""
        return "other rows" if difference(gold, found, False) else "the rows are in another order"
    return _Columns(gold, found).search()


class _Columns:
    """The search for an order of columns in which the found rows are among the gold rows.

    Gold columns are given a found column one after the other. After each, rows that agree so far share a
    number; no number may be more frequent among the found rows than among the gold rows, else no later column
    can mend it. Where both have the same number of rows, they are then the same bag. ``gold_blocks`` and
    ``found_blocks`` are the numbers to begin with: rows of different blocks are never the same.
    """

    def __init__(
        self,
        gold: Sequence[Row],
        found: Sequence[Row],
        gold_blocks: Sequence[int] = (),
        found_blocks: Sequence[int] = (),
    ) -> None:
        self.gold = [tuple(column) for column in zip(*gold, strict=True)]
        self.found = [tuple(column) for column in zip(*found, strict=True)]
        self.start = list(gold_blocks) or [0] * len(gold), list(found_blocks) or [0] * len(found)
        left, right = self.start
        bags = [Counter(zip(right, column, strict=True)) for column in self.found]
        wanted = [Counter(zip(left, column, strict=True)) for column in self.gold]
        self.candidates = [[place for place, bag in enumerate(bags) if bag <= column] for column in wanted]
        # The column with the fewest candidates first: that is where a wrong turn shows soonest.
        self.sequence = sorted(range(len(self.gold)), key=lambda place: len(self.candidates[place]))
        self.tries = 0

    def search(self) -> str:
        """Empty if there is such an order."""
        if not all(self.candidates):
            return "other values"
        if self._extend(0, *self.start, frozenset()):
            return ""
        return (
            "too many orders of columns to look into"
            if self.tries > TRIES
            else "the values belong to other rows"
        )

    def _extend(self, depth: int, gold: list[int], found: list[int], used: frozenset[int]) -> bool:
        if depth == len(self.sequence):
            return True
        column = self.sequence[depth]
        tried: set[Hashable] = set()
        for place in self.candidates[column]:
            if place in used or self.found[place] in tried or self.tries > TRIES:
                continue
            tried.add(self.found[place])
            self.tries += 1
            numbers: dict[tuple[int, Hashable], int] = {}
            left = _refined(gold, self.gold[column], numbers)
            right = _refined(found, self.found[place], numbers)
            if Counter(right) <= Counter(left) and self._extend(depth + 1, left, right, used | {place}):
                return True
        return False


def _refined(
    groups: Sequence[int], column: Sequence[Hashable], numbers: dict[tuple[int, Hashable], int]
) -> list[int]:
    return [numbers.setdefault(key, len(numbers)) for key in zip(groups, column, strict=True)]
