"""Rows for verl: what credit means is what the carrier sums to, and what verl would ignore is refused."""

from __future__ import annotations

import pytest
from agl_verl.rows import CannotTrain, Step, pack, step, train_row, unpack
from hypothesis import given, strategies as st

from agentlightning.types import Row


def row(mask: list[int], **given: object) -> Row:
    n = len(mask)
    values = {
        "row_id": "ro-1/0",
        "rollout_id": "ro-1",
        "policy": "policy",
        "token_ids": list(range(10, 10 + n)),
        "mask": mask,
        "advantages": [0.5 * m for m in mask],
        "logprobs": [-1.0 * m for m in mask],
        "weights": [0.25 * m for m in mask],
        "versions": [3 if m else -1 for m in mask],
    }
    return Row(**{**values, **given})  # type: ignore[arg-type]


def test_the_prompt_ends_where_training_begins() -> None:
    found = train_row(row([0, 0, 1, 1, 0, 1]))
    assert (found.prompt, found.response) == ([10, 11], [12, 13, 14, 15])
    assert found.mask == [1, 1, 0, 1]
    assert found.logprobs == [-1.0, -1.0, 0.0, -1.0]
    assert found.carrier == [0.125, 0.125, 0.0, 0.125]
    assert (found.oldest, found.newest) == (3, 3)


@given(
    st.lists(st.tuples(st.booleans(), st.floats(-5, 5), st.floats(0, 1)), min_size=1, max_size=30).filter(
        lambda tokens: any(trained for trained, _, _ in tokens)
    )
)
def test_the_carrier_sums_to_what_credit_means(tokens: list[tuple[bool, float, float]]) -> None:
    mask = [int(trained) for trained, _, _ in tokens]
    advantages = [a if m else 0.0 for m, (_, a, _) in zip(mask, tokens, strict=True)]
    weights = [w if m else 0.0 for m, (_, _, w) in zip(mask, tokens, strict=True)]
    found = train_row(row(mask, advantages=advantages, weights=weights))
    assert sum(found.carrier) == pytest.approx(sum(a * w for a, w in zip(advantages, weights, strict=True)))
    assert found.prompt + found.response == row(mask).token_ids
    assert sum(found.mask) == sum(mask)
    assert all(m or not c for m, c in zip(found.mask, found.carrier, strict=True))


def test_versions_span_the_trained_tokens() -> None:
    found = train_row(row([0, 1, 1, 1], versions=[-1, 4, 2, 7]))
    assert (found.oldest, found.newest) == (2, 7)


def test_a_guided_choice_is_refused() -> None:
    with pytest.raises(CannotTrain, match="guided choice"):
        train_row(row([0, 1], allowed={1: [[11], [12]]}))


def test_a_row_without_a_trained_token_is_left_out_of_a_step_and_no_row_by_itself() -> None:
    assert step([row([0, 0]), row([0, 1])]) == Step([train_row(row([0, 1]))])
    with pytest.raises(CannotTrain, match="no trained token"):
        train_row(row([0, 0]))


def test_a_step_travels_as_bytes() -> None:
    made = step([row([0, 1, 1]), row([1])])
    assert unpack(pack(made)) == made
