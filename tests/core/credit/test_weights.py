"""Mini-batches: whole rows, equally many, and the same for every driver and every resume."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentlightning.credit.rows import minibatches
from agentlightning.types import Row


def rows(count: int) -> list[Row]:
    return [
        Row(
            row_id=f"r{n}", rollout_id=f"ro-{n}", policy="policy", token_ids=[1, n + 2], mask=[0, 1],
            advantages=[0.0, 1.0], logprobs=[0.0, -1.0], weights=[0.0, 0.1], versions=[-1, 0],
        )
        for n in range(count)
    ]  # fmt: skip


def ids(shares: list[list[Row]]) -> list[list[str]]:
    return [[row.row_id for row in share] for share in shares]


@given(st.integers(0, 20), st.integers(1, 24), st.integers(0, 3), st.integers(0, 3))
def test_every_row_is_in_one_of_equal_minibatches(count: int, wanted: int, seed: int, version: int) -> None:
    found = ids(minibatches(rows(count), wanted, seed, version))
    assert len(found) == min(count, wanted)
    assert sorted(i for share in found for i in share) == sorted(row.row_id for row in rows(count))
    assert {len(share) for share in found} <= {count // wanted, -(-count // wanted)} or count < wanted


def test_they_are_a_function_of_rows_seed_and_version() -> None:
    given = rows(9)
    found = ids(minibatches(given, 4, 5, 3))
    assert sorted(map(len, found)) == [2, 2, 2, 3]
    assert found == ids(minibatches(given[::-1], 4, 5, 3))
    assert found != ids(minibatches(given, 4, 6, 3)) and found != ids(minibatches(given, 4, 5, 4))


@pytest.mark.parametrize("seed", [0, 1])
def test_one_minibatch_is_the_step_in_its_canonical_order(seed: int) -> None:
    assert ids(minibatches(rows(5), 1, seed, 0)) == [[f"r{n}" for n in range(5)]]
