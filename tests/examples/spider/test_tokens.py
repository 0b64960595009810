"""Cutting SQL into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from spider.sql.tokens import meaningful, orders, tokens, unfolded


@given(st.text(alphabet="abcé 01.'\"`[]-/*\n;()<>=!|$xX_", max_size=60))
def test_the_tokens_joined_are_the_text(sql: str) -> None:
    assert "".join(token.text for token in tokens(sql)) == sql


def test_quotes_comments_and_numbers_are_whole() -> None:
    sql = (
        "SELECT 'it''s', "
        + '"a ""b"""'
        + ", [c d], `e`, x'0f', 1.5e-3, .5, 0x1F, a->>'b' -- no\n/* more */ FROM t"
    )
    assert [token.text for token in meaningful(sql)] == [
        "SELECT", "'it''s'", ",", '"a ""b"""', ",", "[c d]", ",", "`e`", ",", "x'0f'", ",", "1.5e-3", ",",
        ".5", ",", "0x1F", ",", "a", "->>", "'b'", "FROM", "t",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order  /* x */ by a", True),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", True),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM u ORDER BY b LIMIT 1)", False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT 'order by' FROM t", False),
        ("SELECT a FROM t -- ORDER BY a", False),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", False),
    ],
)
def test_only_the_outermost_order_by_orders(sql: str, expected: bool) -> None:
    assert orders(sql) is expected


def test_with_clauses_are_counted_by_their_copies() -> None:
    assert unfolded("SELECT a AS b FROM t") == 0
    assert unfolded("WITH a AS (SELECT 1), b AS (SELECT * FROM a, a) SELECT b.x, b.y FROM b") <= 10
    assert unfolded("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT * FROM c") <= 5
    deep = "WITH t0 AS MATERIALIZED (SELECT 1)" + "".join(
        f", t{i} (x) AS NOT MATERIALIZED (SELECT * FROM t{i - 1}, t{i - 1})" for i in range(1, 200)
    )
    assert unfolded(deep + " SELECT * FROM t199") > 1e6
    assert unfolded("") == 0
