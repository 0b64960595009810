"""Execution match: does a query answer as the gold query does? The reward of the agent, 1.0 or 0.0.

The rule is the public one for this data: both queries are run, DISTINCT is left out of both, and the results
must agree as bags of rows, up to the order of columns; as lists of rows where the outermost gold query says
ORDER BY. Two empty results agree. Values are equal as Python says: 1 is 1.0 and not '1', NULL is NULL.
Invariant: the answer is a function of the two texts and the files, and a gold query that cannot be run is an
error of the data (:class:`GoldError`), never a wrong answer of the agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spider.sql.execution import LIMITS, Limits, Row, SqlError, run
from spider.sql.tokens import Token, meaningful, orders

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
            expected = run(database, plain(gold), limits).rows
        except SqlError as error:
            raise GoldError(f"{database.name}: the gold query {gold!r} fails: {error}") from None
        try:
            found = run(database, plain(predicted), limits).rows
        except SqlError as error:
            return Verdict(False, f"it fails: {error}")
        if reason := difference(expected, found, ordered):
            return Verdict(False, reason)
    return Verdict(True)


# --------------------------------------------------------------------------------------------------- texts
_SPLIT_SIGNS = {(">", "="), ("<", "="), ("!", "="), ("<", ">")}
_THIS_YEAR = ["YEAR", "(", "CURDATE", "(", ")", ")"]


def plain(sql: str) -> str:
    """``sql`` as it is run: without DISTINCT, ``> =`` as ``>=``, and YEAR(CURDATE()) as 2020.

    These are conventions of the data's gold queries. Strings, quoted names and comments are left alone, and
    so is IS [NOT] DISTINCT FROM, which is an operator.
    """
    parts = meaningful(sql)
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
        elif not (token.says("DISTINCT") and not _operator(parts, place)):
            kept.append(token.text)
        place += 1
    return " ".join(kept)


def _operator(parts: Sequence[Token], place: int) -> bool:
    before = [part.text.upper() for part in parts[max(0, place - 2) : place]]
    after = parts[place + 1].text.upper() if place + 1 < len(parts) else ""
    return after == "FROM" and (before[-1:] == ["IS"] or before == ["IS", "NOT"])


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
    """The search for an order of columns in which two bags of rows are the same.

    Gold columns are given a found column one after the other. After each, rows that agree so far share a
    number; the numbers must be equally frequent on both sides, else no later column can mend it.
    """

    def __init__(self, gold: Sequence[Row], found: Sequence[Row]) -> None:
        self.gold = [tuple(column) for column in zip(*gold, strict=True)]
        self.found = [tuple(column) for column in zip(*found, strict=True)]
        bags = [Counter(column) for column in self.found]
        self.candidates = [
            [place for place, bag in enumerate(bags) if bag == Counter(column)] for column in self.gold
        ]
        # The column with the fewest candidates first: that is where a wrong turn shows soonest.
        self.sequence = sorted(range(len(self.gold)), key=lambda place: len(self.candidates[place]))
        self.tries = 0

    def search(self) -> str:
        """Empty if there is such an order."""
        if not all(self.candidates):
            return "other values"
        rows = len(self.gold[0])
        if self._extend(0, [0] * rows, [0] * rows, frozenset()):
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
            if Counter(left) == Counter(right) and self._extend(depth + 1, left, right, used | {place}):
                return True
        return False


def _refined(
    groups: Sequence[int], column: Sequence[Hashable], numbers: dict[tuple[int, Hashable], int]
) -> list[int]:
    return [numbers.setdefault(key, len(numbers)) for key in zip(groups, column, strict=True)]
