"""Calls that were sampled otherwise than the run's policy: weighed where their probabilities are known."""

from __future__ import annotations

from typing import Any

import pytest
from core.credit.builders import make_call, make_record, one_call

from agentlightning.credit import assign, rows_digest
from agentlightning.credit.eligibility import OFF_POLICY, is_unweighable, is_weighed
from agentlightning.recipes import GRPO
from agentlightning.types import Call, Recipe

RECIPE = GRPO()
MARKED = {"masked": OFF_POLICY}
"""A grammar or a forced tool whose masks the engine does not report."""


def own(**sampling: Any) -> dict[str, Any]:
    return {"sampling": {"temperature": 1.0, **sampling}}


def fate(call: Call, recipe: Recipe = RECIPE) -> str:
    weighed, out = is_weighed(call, recipe), is_unweighable(call, recipe)
    assert not (weighed and out)
    return "weighed" if weighed else "left out" if out else "as it is"


@pytest.mark.parametrize(
    ("fields", "processed", "raw", "undeclared"),
    [
        ({}, "as it is", "as it is", "as it is"),
        (MARKED, "weighed", "left out", "left out"),
        (own(temperature=0.7), "weighed", "left out", "as it is"),
        (own(top_p=0.9), "weighed", "left out", "left out"),
        (own(top_k=5), "weighed", "left out", "left out"),
        (own(top_k=-1, min_p=0.0, repetition_penalty=1), "as it is", "as it is", "as it is"),
        (own(min_p=0.1), "weighed", "left out", "left out"),
        (own(presence_penalty=0.5), "weighed", "left out", "left out"),
        (own(repetition_penalty=1.2), "weighed", "left out", "left out"),
        ({"sampling": {}}, "as it is", "as it is", "as it is"),
    ],
)
def test_what_becomes_of_a_call(fields: dict[str, Any], processed: str, raw: str, undeclared: str) -> None:
    found = [fate(one_call(**fields, logprobs_mode=mode)) for mode in ("processed", "raw", None)]
    assert found == [processed, raw, undeclared]


def test_without_a_cap_none_is_weighed() -> None:
    recipe = GRPO(off_policy_cap=None)
    assert fate(one_call(**MARKED, logprobs_mode="processed"), recipe) == "left out"
    assert fate(one_call(**own(top_p=0.9), logprobs_mode="processed"), recipe) == "left out"
    assert fate(one_call(**own(temperature=0.7), logprobs_mode="processed"), recipe) == "as it is"


def test_the_runs_own_temperature_is_no_other() -> None:
    recipe = GRPO(temperature=0.7)
    assert fate(one_call(temperature=0.7, logprobs_mode="processed"), recipe) == "as it is"
    assert fate(one_call(temperature=1.0, logprobs_mode="processed"), recipe) == "weighed"
    # Raw logprobs are at temperature 1, which is not how it was sampled.
    assert fate(one_call(temperature=0.7, logprobs_mode="raw"), recipe) == "left out"


@pytest.mark.parametrize("mode", ["processed", "raw", None])
def test_greedy_calls_are_left_out(mode: Any) -> None:
    for fields in (own(temperature=0.0), {**own(temperature=0), **MARKED}):
        batch = assign([make_record(calls=[one_call(**fields, logprobs_mode=mode)], reward=1.0)], RECIPE)
        assert batch.ledgers[0].left_out == {OFF_POLICY: 1} and not batch.rows


def test_without_logprobs_it_is_left_out_for_that() -> None:
    call = one_call(**MARKED, logprobs_mode="processed", logprobs=None)
    assert assign([make_record(calls=[call], reward=1.0)], RECIPE).ledgers[0].left_out == {"no-logprobs": 1}


def turn(name: str, prompt: list[int], sequence: int, **fields: Any) -> Call:
    return make_call(name, prompt, [5, 6], sequence, logprobs_mode="processed", **fields)


def test_it_is_in_one_row_with_the_others_at_the_runs_temperature_and_counted() -> None:
    calls = [
        turn("a", [1, 2], 0),
        turn("b", [1, 2, 5, 6, 3], 1, masked=OFF_POLICY),
        turn("c", [1, 2, 5, 6, 3, 5, 6, 4], 2, temperature=0.5),
    ]
    batch = assign([make_record(calls=calls, reward=1.0)], RECIPE)
    (row,) = batch.rows
    assert [(s.call_id, s.off_policy) for s in row.segments] == [("a", False), ("b", True), ("c", True)]
    assert row.temperature == 1.0 and row.mask == [0, 0, 1, 1, 0, 1, 1, 0, 1, 1]
    (ledger,) = batch.ledgers
    assert (ledger.made, ledger.trained, ledger.off_policy, ledger.left_out) == (3, 3, 2, {})
    assert (batch.metrics["off_policy/calls"], batch.metrics["off_policy/tokens"]) == (2, 4)
    plain = assign([make_record(calls=[turn("a", [1, 2], 0)], reward=1.0)], RECIPE)
    assert not [name for name in plain.metrics if name.startswith("off_policy")]


def test_a_rule_sees_it_as_trainable() -> None:
    calls = [one_call(), one_call(sequence=1, masked=OFF_POLICY, logprobs_mode="processed")]
    batch = assign([make_record(calls=calls, reward=1.0)], GRPO(credit="last"))
    assert batch.ledgers[0].left_out == {"not-last": 1} and batch.ledgers[0].off_policy == 1


def test_the_digest_of_a_row_knows_it() -> None:
    marked, plain = (
        assign([make_record(calls=[turn("a", [1, 2], 0, **fields)], reward=1.0)], RECIPE).rows
        for fields in (MARKED, {})
    )
    assert rows_digest(marked) != rows_digest(plain)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_is_no_weight_is_refused(cap: float) -> None:
    with pytest.raises(ValueError, match=r"recipe.off_policy_cap = .*must be finite and above 0"):
        assign([], GRPO(off_policy_cap=cap))
