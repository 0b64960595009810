"""Merged rows train the same gradient as one row a call, to 1e-9 in float64."""

from __future__ import annotations

import msgspec
import pytest
import torch
from core.credit.builders import PATIENT, make_call, make_record, worlds
from core.credit.reference import Toy, gradient, row_loss, torch_loss
from hypothesis import given, settings, strategies as st
from marks import examples

from agentlightning.credit import assign
from agentlightning.recipes import RLOO
from agentlightning.types import Recipe

torch.set_num_threads(1)
VOCABULARY = 4
MODEL = Toy(VOCABULARY)
RECIPE = st.builds(
    Recipe,
    name=st.just("t"),
    credit=st.sampled_from(["broadcast", "per_call", "discounted", "per_agent"]),
    baseline=st.sampled_from(["group", "rloo", "batch", "none"]),
    scale=st.sampled_from(["std", "none"]),
    loss_aggregation=st.sampled_from(["rollout", "nested", "call", "token", "constant"]),
    gamma=st.sampled_from([0.5, 1.0]),
)


def on_policy(records):
    """The records with the model's own logprobs, so that ratios stay near 1 and the clip rarely acts."""
    for record in records:
        for call in record.calls:
            with torch.no_grad():
                found = MODEL.logprobs(call.prompt_ids + call.response_ids, call.sampling["temperature"])
            call.logprobs = (found[len(call.prompt_ids) :] + 0.05).tolist()
    return records


@settings(PATIENT, max_examples=examples(40))
@given(worlds(vocabulary=VOCABULARY, clean=True), RECIPE, st.booleans())
def test_merged_equals_unmerged(records, recipe, near):
    records = on_policy(records) if near else records
    merged = assign(records, recipe).rows
    single = assign(records, msgspec.structs.replace(recipe, merge=False)).rows
    for policy in {row.policy for row in merged}:
        a = gradient(MODEL, [row for row in merged if row.policy == policy], recipe)
        b = gradient(MODEL, [row for row in single if row.policy == policy], recipe)
        assert (a - b).abs().max().item() <= 1e-9


def test_the_comparison_would_notice_a_wrong_prefix_or_weight():
    calls = [make_call("a", [1], [2, 3], 0), make_call("b", [1, 2, 3, 0], [1], 1)]
    recipe = Recipe(name="t", baseline="none")
    records = on_policy([make_record(calls=calls, reward=1.0)])
    (row,) = assign(records, recipe).rows
    true = gradient(MODEL, [row], recipe)
    assert true.abs().max().item() > 1e-3
    for field, value in [("token_ids", [0, 2, 3, 0, 1]), ("weights", [0.0, 0.5, 0.3, 0.0, 0.3])]:
        wrong = msgspec.structs.replace(row, **{field: value})
        assert (gradient(MODEL, [wrong], recipe) - true).abs().max().item() > 1e-4


@settings(PATIENT, max_examples=examples(20))
@given(worlds(vocabulary=VOCABULARY, clean=True), RECIPE)
def test_the_loss_in_plain_python_is_the_loss_in_torch(records, recipe):
    rows = assign(on_policy(records), recipe).rows
    with torch.no_grad():
        plain = sum(row_loss(r, MODEL.logprobs(r.token_ids, r.temperature).tolist(), recipe) for r in rows)
        assert plain == pytest.approx(torch_loss(MODEL, rows, recipe).item(), abs=1e-12)


def test_rloo_at_ratio_one_is_reinforce():
    records = on_policy(
        [
            make_record(f"r{i}", [make_call(f"c{i}", [1], [i % 4, 2], 0, f"r{i}")], reward=float(i))
            for i in range(3)
        ]
    )
    for record in records:
        for call in record.calls:
            call.logprobs = [p - 0.05 for p in call.logprobs]  # exactly on policy: ratio 1
    recipe = RLOO()
    rows = assign(records, recipe).rows
    MODEL.zero_grad()
    # J = 1/k sum_i (r_i - mean of the others) log pi(o_i), with r = 0, 1, 2: advantages -1.5, 0, 1.5
    objective = sum(
        a * MODEL.logprobs(row.token_ids, 1.0)[1:].sum() / 3
        for a, row in zip([-1.5, 0.0, 1.5], rows, strict=True)
    )
    (-objective).backward()
    expected = torch.cat([p.grad.flatten() for p in MODEL.parameters() if p.grad is not None])
    assert (gradient(MODEL, rows, recipe) - expected).abs().max().item() <= 1e-12
