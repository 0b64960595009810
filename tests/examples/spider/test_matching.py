"""Execution match: what counts as the same answer, and that nothing makes a wrong one right."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import mutations
import pytest
import second
from hypothesis import given, settings, strategies as st
from marks import examples, sampled

from spider.databases import BUNDLED
from spider.datasets import load
from spider.sql import matching
from spider.sql.matching import GoldError, difference, match, plain

TOO_MANY = "too many orders of columns to look into"


def same(people: Path, gold: str, predicted: str) -> bool:
    verdict = match(gold, predicted, [people])
    assert verdict.match is (verdict.reason == "") and verdict.reward == float(verdict.match)
    return verdict.match


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        # DISTINCT counts where it changes the result
        ("SELECT DISTINCT age FROM person", "SELECT age FROM person", False),
        ("SELECT age FROM person", "SELECT DISTINCT age FROM person", False),
        ("SELECT count(DISTINCT age) FROM person", "SELECT count(age) FROM person", False),
        ("SELECT DISTINCT age FROM person", "SELECT age FROM person GROUP BY age", True),
        ("SELECT DISTINCT id FROM person", "SELECT id FROM person", True),
        ("SELECT 'DISTINCT' FROM person", "SELECT '' FROM person", False),
        ("SELECT name FROM person", "SELECT name FROM person WHERE name IS NOT DISTINCT FROM NULL", False),
        ("SELECT age FROM person", "SELECT age FROM person UNION SELECT age FROM person", False),
        # columns
        ("SELECT name, age FROM person", "SELECT age, name FROM person", True),
        ("SELECT name, age FROM person", "SELECT name, age, 1 FROM person", False),
        ("SELECT name, age FROM person", "SELECT name FROM person", False),
        ("SELECT age, height FROM person", "SELECT age, age FROM person", False),
        ("SELECT id, id FROM person", "SELECT id, 5 - id FROM person", False),
        ("SELECT id, 5 - id FROM person", "SELECT 5 - id, id FROM person", True),
        ("SELECT name AS x FROM person", "SELECT name AS y FROM person", True),
        # order
        ("SELECT id FROM person", "SELECT id FROM person ORDER BY id DESC", True),
        ("SELECT id FROM person ORDER BY id", "SELECT id FROM person ORDER BY id DESC", False),
        ("SELECT id FROM person ORDER BY id", "SELECT id FROM person", True),
        ("SELECT id, name FROM person ORDER BY id", "SELECT name, id FROM person ORDER BY id", True),
        ("SELECT id FROM (SELECT id FROM person ORDER BY id)", "SELECT id FROM person ORDER BY 1 DESC", True),
        ("SELECT 'order by', id FROM person", "SELECT 'order by', id FROM person ORDER BY id DESC", True),
        # rows that tie in ORDER BY
        ("SELECT id FROM person ORDER BY age", "VALUES (2), (4), (1), (3)", True),
        ("SELECT id FROM person ORDER BY age", "VALUES (4), (2), (3), (1)", True),
        ("SELECT id FROM person ORDER BY age", "VALUES (2), (1), (4), (3)", False),
        ("SELECT id FROM person ORDER BY age DESC", "VALUES (3), (1), (4), (2)", True),
        ("SELECT id FROM person ORDER BY age, height", "VALUES (4), (2), (1), (3)", True),
        ("SELECT id FROM person ORDER BY age, height", "VALUES (2), (4), (1), (3)", False),
        ("SELECT id, age FROM person ORDER BY 2", "VALUES (25, 4), (25, 2), (30, 3), (30, 1)", True),
        ("SELECT id, age AS a FROM person ORDER BY a", "VALUES (25, 4), (25, 2), (30, 1), (30, 3)", True),
        ("SELECT age, count(*) FROM person GROUP BY age ORDER BY count(*)", "VALUES (30, 2), (25, 2)", True),
        ("SELECT DISTINCT age, height FROM person ORDER BY height", "VALUES (25, 1), (30, 1.5), (25, 1.5), (30, 2)", True),  # noqa: E501
        ("SELECT id FROM person WHERE id < 3 UNION SELECT age FROM person ORDER BY 1", "VALUES (2), (1), (25), (30)", False),  # noqa: E501
        # with LIMIT, any of the rows that tie for the last places
        ("SELECT id FROM person ORDER BY age LIMIT 1", "SELECT 4", True),
        ("SELECT id FROM person ORDER BY age LIMIT 1", "SELECT 2", True),
        ("SELECT id FROM person ORDER BY age LIMIT 1", "SELECT 1", False),
        ("SELECT id FROM person ORDER BY age LIMIT 1", "VALUES (2), (4)", False),
        ("SELECT id FROM person ORDER BY age LIMIT 3", "VALUES (4), (2), (3)", True),
        ("SELECT id FROM person ORDER BY age LIMIT 3", "VALUES (4), (3), (2)", False),
        ("SELECT id FROM person ORDER BY age LIMIT 3", "VALUES (4), (4), (3)", False),
        ("SELECT id FROM person ORDER BY age LIMIT 2 OFFSET 1", "VALUES (4), (3)", True),
        ("SELECT id FROM person ORDER BY age LIMIT 2 OFFSET 1", "VALUES (2), (1)", True),
        ("SELECT id FROM person ORDER BY age LIMIT 2 OFFSET 1", "VALUES (1), (2)", False),
        # NULL
        ("SELECT name FROM person WHERE id = 3", "SELECT NULL", True),
        ("SELECT name FROM person WHERE id = 3", "SELECT ''", False),
        ("SELECT name FROM person WHERE id = 3", "SELECT 'None'", False),
        ("SELECT name FROM person WHERE id = 3", "SELECT 0", False),
        # duplicates
        ("SELECT age FROM person", "VALUES (30), (25), (25), (25)", False),
        ("SELECT age FROM person", "VALUES (25), (30), (30), (25)", True),
        ("SELECT age FROM person", "SELECT age FROM person GROUP BY age", False),
        # empty results
        ("SELECT id FROM nobody", "SELECT id, age FROM person WHERE 0", True),
        ("SELECT id FROM nobody", "SELECT id FROM person", False),
        ("SELECT id FROM person", "SELECT id FROM nobody", False),
        ("SELECT id FROM nobody", "", False),
        # types
        ("SELECT 1", "SELECT 1.0", True),
        ("SELECT 1", "SELECT '1'", False),
        ("SELECT 'a'", "SELECT x'61'", False),
        ("SELECT 10, 1.0", "SELECT 1, 10.0", True),
        ("SELECT 0.1 + 0.2", "SELECT 0.3", False),
        # what does not run
        ("SELECT id FROM person", "SELECT id FROM person; DROP TABLE person", False),
        ("SELECT id FROM person", "DROP TABLE person", False),
        ("SELECT id FROM person", "SELECT id FORM person", False),
        ("SELECT id FROM person", "id", False),
        # signs that were drawn apart
        ("SELECT id FROM person WHERE age > = 30", "SELECT id FROM person WHERE age >= 30", True),
        ("SELECT id FROM person WHERE age ! = 30", "SELECT id FROM person WHERE age < > 30", True),
        ("SELECT '> ='", "SELECT '>='", False),
        ("SELECT YEAR(CURDATE())", "SELECT 2020", True),
    ],
)  # fmt: skip
def test_what_is_the_same(people: Path, gold: str, predicted: str, expected: bool) -> None:
    assert same(people, gold, predicted) is expected
    assert second.agrees(gold, predicted, str(people)) is expected


def test_the_text_that_is_run_keeps_strings_and_operators() -> None:
    assert plain(";SELECT DISTINCT a FROM t ;; -- DISTINCT") == "SELECT DISTINCT a FROM t"
    assert (
        plain("""SELECT 'DISTINCT > =', "distinct" FROM t""")
        == """SELECT 'DISTINCT > =' , "distinct" FROM t"""
    )
    assert plain("a IS DISTINCT FROM b") == "a IS DISTINCT FROM b"
    assert plain("x < = 1.5e-3") == "x <= 1.5e-3"


def test_a_gold_query_that_fails_is_an_error_not_a_zero(people: Path) -> None:
    with pytest.raises(GoldError, match=r"people\.sqlite: the gold query .* fails: no such column: nme"):
        match("SELECT nme FROM person", "SELECT 1", [people])
    with pytest.raises(GoldError, match="no database"):
        match("SELECT 1", "SELECT 1", [])


def test_every_database_has_a_say(people: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.executescript(
        "CREATE TABLE person (id, name, age, height); INSERT INTO person VALUES (7, 'Zoe', 1, 2)"
    )
    connection.close()
    lucky = "SELECT count(*) FROM person", "SELECT 4"
    assert match(*lucky, [people]).match
    assert match(*lucky, [people, other]).reason == "other values"


def test_verdicts_say_why(people: Path) -> None:
    def reason(gold: str, predicted: str) -> str:
        return match(gold, predicted, [people]).reason

    assert reason("SELECT id FROM person", "SELECT 1") == "1 rows instead of 4"
    assert reason("SELECT id, age FROM person", "SELECT id FROM person") == "1 columns instead of 2"
    assert reason("SELECT id FROM person", "SELECT id + 1 FROM person") == "other values"
    assert (
        reason("SELECT id, age FROM person", "SELECT 5 - id, age FROM person")
        == "the values belong to other rows"
    )
    assert reason("SELECT id FROM person ORDER BY id", "SELECT id FROM person ORDER BY id DESC").endswith(
        "another order"
    )
    assert reason("SELECT id FROM person ORDER BY id", "SELECT id + 1 FROM person") == "other rows"
    assert reason("SELECT 1", "SELECT x").startswith("it fails: no such column")


def test_numbers_are_not_sorted_as_text() -> None:
    """Sorted by their text, (10, 1.0) and (1, 10.0) look different."""
    assert difference([(10, 1.0)], [(10.0, 1)], False) == ""
    assert difference([(10, 1.0)], [(1, 10.0)], True) == ""


def test_with_a_limit_and_no_order_any_rows_will_do(people: Path) -> None:
    assert match("SELECT id FROM person LIMIT 2", "VALUES (4), (1)", [people]).match
    assert not match("SELECT id FROM person LIMIT 2", "VALUES (4), (5)", [people]).match
    assert not match("SELECT id FROM person LIMIT 2", "SELECT id FROM person LIMIT 3", [people]).match


def test_a_computed_limit_leaves_the_order_as_it_is(people: Path) -> None:
    gold = "SELECT id FROM person ORDER BY age LIMIT 1 + 0"
    assert match(gold, "SELECT 2", [people]).match
    assert not match(gold, "SELECT 4", [people]).match


values = st.one_of(st.integers(0, 2), st.sampled_from([None, "", "1", 1.0, 0.5]))


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_the_search_finds_every_order_of_columns_and_no_other(data: Any) -> None:
    width = data.draw(st.integers(1, 5))
    rows = st.lists(st.tuples(*[values] * width), min_size=1, max_size=4)
    gold: Sequence[Any] = data.draw(rows)
    found = data.draw(st.one_of(rows, st.permutations(list(gold))))
    order = data.draw(st.permutations(list(range(width))))
    turned = [tuple(row[i] for i in order) for row in found]
    for ordered in (False, True):
        assert (difference(gold, turned, ordered) == "") is _by_hand(gold, turned, ordered)


def _by_hand(gold: Sequence[Any], found: Sequence[Any], ordered: bool) -> bool:
    import itertools
    from collections import Counter

    for order in itertools.permutations(range(len(gold[0]))):
        turned = [tuple(row[i] for i in order) for row in found]
        if (turned == list(gold)) if ordered else (Counter(turned) == Counter(gold)):
            return True
    return False


def test_many_like_columns_do_not_take_for_ever() -> None:
    width = 24
    rng = random.Random(0)
    gold = [tuple(rng.randrange(2) for _ in range(width)) for _ in range(12)]
    order = rng.sample(range(width), width)
    assert difference(gold, [tuple(row[i] for i in order) for row in reversed(gold)], False) == ""
    cycle = [tuple(int(i in (j, (j + 1) % width)) for i in range(width)) for j in range(width)]
    half = width // 2  # two rings instead of one: every column and every row looks the same
    rings = [tuple(int(i in (j, j - j % half + (j + 1) % half)) for i in range(width)) for j in range(width)]
    assert difference(cycle, rings, False) in (TOO_MANY, "the values belong to other rows")


def test_a_search_that_was_given_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gold = [(*(int(i == j) for i in range(6)), j) for j in range(6)]
    found = [(*row[5::-1], row[6]) for row in gold]
    assert difference(gold, found, False) == ""
    monkeypatch.setattr(matching, "TRIES", 2)
    assert difference(gold, found, False) == TOO_MANY


def test_every_gold_query_of_the_bundled_data_matches_itself_in_both_evaluators() -> None:
    for question in load("dev"):
        database = BUNDLED / f"{question['db_id']}.sqlite"
        assert match(question["query"], question["query"], [database]).match
        assert second.agrees(question["query"], question["query"], str(database))


@pytest.mark.parametrize("queries", sampled([150, 1_500], 0))
def test_both_evaluators_agree_on_mutated_queries(queries: int) -> None:
    golds = sorted({(question["db_id"], question["query"]) for question in load("dev")})
    columns = {name: mutations.columns_of(str(BUNDLED / f"{name}.sqlite")) for name, _ in golds}
    matches = 0
    for name, gold, mutated in islice(mutations.stream(golds, columns, seed=7), queries):
        database = BUNDLED / f"{name}.sqlite"
        verdict = match(gold, mutated, [database])
        assert verdict.match is second.agrees(gold, mutated, str(database)), json.dumps([name, gold, mutated])
        matches += verdict.match
    assert 2 / 15 < matches / queries < 13 / 15  # the changes are neither all right nor all wrong
