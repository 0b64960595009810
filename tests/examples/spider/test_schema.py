"""What a prompt says of a database and of a result, within its budget."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from spider.databases import BUNDLED, find
from spider.sql.execution import Result, SqlError
from spider.sql.schema import describe, quoted, read, shown
from spider.sql.showing import show, show_error

ALL = sorted(BUNDLED.glob("*.sqlite"))


def test_tables_columns_keys_and_rows(people: Path) -> None:
    assert describe(people, 2_048, 2).splitlines() == [
        "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, height REAL)",
        "-- 1, 'Ann', 30, 1.5",
        "-- 2, 'Bob', 25, 1.5",
        "CREATE TABLE raw (x TEXT)",
        "-- '\ufffda'",
        "-- '\ufffda'",
        'CREATE TABLE nobody (id INTEGER, "full name" TEXT, FOREIGN KEY (id) REFERENCES person (id))',
    ]


@pytest.mark.parametrize("database", ALL, ids=lambda path: path.stem)
@pytest.mark.parametrize("chars", [120, 400, 1_000, 2_048])
def test_the_schema_keeps_to_its_budget_and_is_never_cut_inside_a_line(database: Path, chars: int) -> None:
    text = describe(database, chars)
    assert 0 < len(text) <= chars
    whole = set(describe(database, 10**6, 5).splitlines())
    for line in text.splitlines():
        known = line in whole or line.startswith(("-- columns left out", "--"))
        assert known or line in {table.line(brief=True) for table in read(database)}
    if "left out" not in text and len(text) > 60:
        assert all(quoted(table.name) in text for table in read(database))


def test_what_goes_first_is_what_can_be_spared() -> None:
    database = find("loan_1")[0]
    full = describe(database, 2_048)
    assert full.count("\n--") == 9 and full.count("CREATE TABLE") == 3
    assert describe(database, 999).count("\n--") == 9
    assert 0 < describe(database, 990).count("\n--") < 9
    assert describe(database, 587).count("CREATE TABLE") == 3
    brief = describe(database, 586)
    assert "CREATE" not in brief and "loan (loan_ID, loan_type" in brief
    assert describe(database, 120).endswith("left out for want of room: customer, loan")
    assert describe(database, 30) == "-- 3 tables, which do not fit into 30 characters"[:30]


def test_names_and_values_are_written_as_sql_takes_them() -> None:
    assert [quoted(name) for name in ("a_1", "A b", "order", 'x"y', "1a", "é")] == [
        "a_1", '"A b"', '"order"', '"x""y"', '"1a"', '"é"',
    ]  # fmt: skip
    assert shown("a\n b") == "'a b'"
    assert len(shown("x" * 99)) == 42 and shown("x" * 99).endswith("…'")
    assert [shown(value) for value in (None, 1, 1.5, b"abc")] == ["NULL", "1", "1.5", "<3 bytes>"]


def test_a_database_without_tables_and_none_at_all(tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).executescript("CREATE TABLE t (x); DROP TABLE t")
    assert describe(empty) == ""
    with pytest.raises(FileNotFoundError, match="there is no database"):
        describe(tmp_path / "nothing.sqlite")


def test_a_result_begins_with_what_there_is() -> None:
    result = Result(("name", "age"), [("Ann", 30), (None, 1.5), ("x" * 99, 2)])
    assert show(result, 1_000, 20) == f"3 rows: name, age\n'Ann', 30\nNULL, 1.5\n'{'x' * 39}…', 2"
    assert show(result, 1_000, 1) == "3 rows: name, age\n'Ann', 30\n…"
    assert show(result, 30, 20) == "3 rows: name, age\n'Ann', 30\n…"
    assert show(Result(("a",), []), 1_000, 20) == "No rows."
    assert show(Result(("a",), [(1,)]), 1_000, 20) == "1 row: a\n1"
    for chars in range(40):
        assert len(show(result, chars, 20)) <= chars
        assert len(show_error(SqlError("no such\n column: x"), chars)) <= chars
    assert show_error(SqlError("no such\n column: x"), 100) == "Error: no such column: x"
