"""Running a query: what is read, what is refused, and that nothing goes on for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from marks import examples

from spider.databases import find
from spider.sql.execution import Limits, SqlError, run

SMALL = Limits(operations=200_000)
LONG = """WITH RECURSIVE c(x) AS (SELECT 'a' UNION ALL SELECT x || x FROM c WHERE length(x) < 8000),
    d(y) AS (SELECT max(x) FROM c) """


def test_rows_and_columns_come_back(people: Path) -> None:
    result = run(people, "SELECT name, age FROM person WHERE id < 3 ORDER BY id;")
    assert result.columns == ("name", "age")
    assert result.rows == [("Ann", 30), ("Bob", 25)]
    assert run(people, "VALUES (1, NULL, 1.5, x'00')").rows == [(1, None, 1.5, b"\0")]
    assert run(people, "WITH a(x) AS (SELECT 1) SELECT x FROM a").rows == [(1,)]
    assert run(people, "SELECT 1 FROM nobody").rows == []


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE person",
        "DELETE FROM person",
        "UPDATE person SET age = 0",
        "INSERT INTO person VALUES (9, 'Eve', 1, 1)",
        "INSERT INTO person VALUES (9, 'Eve', 1, 1) RETURNING id",
        "REPLACE INTO person VALUES (1, 'Eve', 1, 1)",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON person BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE t USING fts5(x)",
        "ALTER TABLE person RENAME TO p",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "DETACH DATABASE main",
        "PRAGMA table_info(person)",
        "PRAGMA query_only = 0",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_table_info('person')",
        "VACUUM",
        "VACUUM INTO 'copy.sqlite'",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "COMMIT",
        "SAVEPOINT s",
        "SELECT load_extension('x')",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT randomblob(1000000000)",
        "SELECT zeroblob(1000000000)",
        "SELECT random()",
    ],
)
def test_what_does_not_read_is_refused(people: Path, sql: str) -> None:
    before = hashlib.sha256(people.read_bytes()).digest()
    with pytest.raises(SqlError, match=r"not allowed|no statement"):
        run(people, sql)
    assert hashlib.sha256(people.read_bytes()).digest() == before
    assert [path.name for path in people.parent.iterdir()] == ["people.sqlite"]


@pytest.mark.parametrize(
    "sql", ["SELECT 1;", "SELECT 1;;", " ; SELECT 1; ; ", "SELECT 1; -- one\n;", "/* a */ SELECT 1"]
)
def test_an_empty_statement_is_no_second_one(people: Path, sql: str) -> None:
    assert run(people, sql).rows == [(1,)]


@pytest.mark.parametrize(
    "sql", ["SELECT 1; DROP TABLE person", "SELECT 1; SELECT 2", "SELECT 1;; SELECT 2;;"]
)
def test_a_second_statement_is_refused_and_so_is_the_first(people: Path, sql: str) -> None:
    with pytest.raises(SqlError, match="only one statement"):
        run(people, sql)
    assert len(run(people, "SELECT * FROM person").rows) == 4


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
        "SELECT count(*) FROM wine a, wine b, wine c, wine d",
        "SELECT a.No FROM wine a, wine b, wine c, wine d ORDER BY a.No * b.No + c.No",
        "SELECT count(DISTINCT a.No * b.No * c.No) FROM wine a, wine b, wine c",
        "SELECT group_concat(a.Name || b.Name) FROM wine a, wine b, wine c",
    ],
)
def test_a_runaway_query_is_stopped_by_the_work_it_does(sql: str) -> None:
    with pytest.raises(SqlError, match=r"too much work|too big"):
        run(find("wine_1")[0], sql, SMALL)


def test_a_query_of_few_slow_operations_is_stopped_by_the_clock() -> None:
    sql = LONG + "SELECT sum(instr(y || w.No, substr(y, 1, 8000) || 'b')) FROM d, wine w, wine v"
    with pytest.raises(SqlError, match=r"more than 0\.2 seconds"):
        run(find("wine_1")[0], sql, Limits(seconds=0.2, operations=10**12))


def test_a_query_that_takes_long_to_plan_is_refused() -> None:
    """SQLite 3.40 takes more than a gigabyte for it, and asks nobody meanwhile."""
    clauses = "".join(f", t{i} AS (SELECT a.x FROM t{i - 1} a, t{i - 1} b)" for i in range(1, 30))
    for name in ("t29", '"t29"', "main.x, t29 y"):
        with pytest.raises(SqlError, match="WITH clauses"):
            run(find("wine_1")[0], f"WITH t0 AS (SELECT 1 x){clauses} SELECT count(*) FROM {name}")
    again = "z AS (WITH t1 AS (SELECT 1), t2 AS (SELECT 1) SELECT 1)"
    hidden = f"WITH t0 AS (SELECT 1 x){clauses}, {again} SELECT * FROM t29"
    with pytest.raises(SqlError, match="WITH clauses"):
        run(find("wine_1")[0], hidden)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "no statement"),
        ("-- nothing", "no statement"),
        ("/*", "syntax error"),
        ("SELECT '\0'", "null character"),
        ("SELECT '\ud800'", "surrogate"),
        ("SELECT nme FROM person", "no such column: nme"),
        ("SELECT * FROM persons", "no such table: persons"),
        ("SELECT average(age) FROM person", "no such function: average"),
        ("SELECT FROM", "syntax error"),
        ("SELECT ?", "binding"),
        ("SELECT :name", "binding|parameter"),
        ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000, "overflow|too large|depth"),
        ("SELECT " + "+".join(["1"] * 1_000), "depth|too large"),
        (" UNION ALL ".join(["SELECT 1"] * 500), "too many terms"),
        ("SELECT " + ", ".join(["1"] * 1_000), "too many columns"),
        ("SELECT '" + "x" * 30_000 + "'", "too (large|big)"),
        ("SELECT 'a' LIKE '" + "%a" * 1_000 + "'", "too complex"),
        ("SELECT hex(hex(hex(hex(hex(hex(hex(hex(hex(hex('" + "a" * 100 + "'))))))))))", "too big"),
        ("SELECT a.No FROM wine a, wine b", "more than 10000 rows"),
    ],
)
def test_a_query_that_fails_says_why(people: Path, sql: str, message: str) -> None:
    database = find("wine_1")[0] if "wine" in sql else people
    with pytest.raises(SqlError, match=message):
        run(database, sql)


def test_rows_and_bytes_are_capped(people: Path) -> None:
    assert len(run(people, "SELECT 1 FROM person", Limits(rows=4)).rows) == 4
    with pytest.raises(SqlError, match="more than 3 rows"):
        run(people, "SELECT 1 FROM person", Limits(rows=3))
    with pytest.raises(SqlError, match="more than 20 bytes"):
        run(people, "SELECT 'twelve chars' FROM person", Limits(size=20))


def test_bytes_that_are_no_text_are_not_dropped(people: Path) -> None:
    assert run(people, "SELECT x FROM raw").rows == [("\ufffda",), ("\ufffda",)]
    assert run(people, "SELECT hex(x) FROM raw").rows == [("FF61",), ("FE61",)]


def test_a_missing_database_is_not_the_fault_of_the_query(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no database"):
        run(tmp_path / "nothing.sqlite", "SELECT 1")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"this is no database, but it is long enough to be one " * 50)
    with pytest.raises(SqlError, match="not a database"):
        run(path, "SELECT * FROM t")


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                "SELECT",
                "*",
                "FROM",
                "person",
                ";",
                "DROP",
                "TABLE",
                "name",
                "(",
                ")",
                ",",
                "'",
                '"',
                "--",
                "/*",
                "*/",
                "WITH",
                "AS",
                "UNION",
                "ALL",
                "x",
                "AS",
                "(",
                "ATTACH",
                "PRAGMA",
                "=",
                "1",
                "INSERT",
                "INTO",
                "VALUES",
                "DELETE",
                "ORDER",
                "BY",
                "LIMIT",
                "age",
                "[",
                "]",
                "`",
                "\x00",
                "é",
            ]
        ),
        max_size=14,
    )
)
def test_no_text_does_anything_but_read_or_fail(people: Path, parts: list[str]) -> None:
    before = people.read_bytes()
    try:
        run(people, " ".join(parts), SMALL)
    except SqlError:
        pass
    assert people.read_bytes() == before
