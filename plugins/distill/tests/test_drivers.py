"""What drivers make of edited rows: the local gradient against the formula in float64, and verl's columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from agentlightning.credit.rows import set_weights
from agentlightning.types import Batch, Ledger, Row
from agl_distill.edit import edited, pack, unpack
from agl_distill.recipe import distill
from agl_local.network.model import CausalLM
from agl_local.training.batch import tokens_of
from agl_local.training.logprobs import token_logprobs
from agl_local.training.loss import Terms, policy_loss
from plugins.local.tests.driver_fixtures import (
    gradients,
    make_row,
    reference_logprobs,
    relative,
    tiny_model,
)

RECIPE = distill(loss_aggregation="call")
SPANS = {"a": ([3, 1, 4, 1, 5, 9, 2, 6], [(2, 4), (5, 8)]), "b": ([2, 7, 1, 8, 2, 8], [(3, 6)])}


def models() -> tuple[CausalLM, CausalLM]:
    """Policy and teacher, in float64."""
    return tiny_model(seed=0).double(), tiny_model(seed=4).double()


def taught(
    policy: CausalLM, teacher: CausalLM, own: Sequence[float] = (0.0,), **settings: Any
) -> tuple[list[Row], dict[str, list[float]]]:
    """Rows with the teacher's advantages, and what the teacher said of each call. ``own``: the advantages of
    a row's calls by the reward of their task.
    """
    rows = [make_row(policy, ids, spans, own, name=name) for name, (ids, spans) in SPANS.items()]
    set_weights(rows, RECIPE)
    said = {
        segment.call_id: reference_logprobs(teacher, row.token_ids)[segment.start : segment.end]
        for row in rows
        for segment in row.segments
    }
    body = {
        "settings": {"coefficient": 0.7, "divergence": "reverse", "beta": 0.5, **settings},
        "scores": {call: pack(values) for call, values in said.items()},
        "left_out": {},
    }
    ledgers = [Ledger(row.rollout_id, made=len(row.segments), trained=len(row.segments)) for row in rows]
    return edited(Batch(rows=rows, ledgers=ledgers), RECIPE, body).rows, said


def formula(ratio: float, divergence: str, beta: float) -> float:
    """``r f'(r) - f(r)`` by automatic differentiation of f, without the constant that has no gradient."""
    r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    s = beta * r + 1 - beta
    f = {
        "reverse": -r.log(),
        "forward": r * r.log(),
        "jsd": beta * r * (r / s).log() - (1 - beta) * s.log(),
    }[divergence]
    (slope,) = torch.autograd.grad(f, r)
    constant = {"reverse": 1.0, "forward": -1.0, "jsd": 0.0}[divergence]
    return float((r * slope - f).detach()) + constant


VARIANTS = [("reverse", 0.5), ("forward", 0.5), ("jsd", 0.5), ("jsd", 0.2), ("jsd", 0.8)]
REWARDED = [pytest.param([0.0], id="no reward"), pytest.param([1.3, -0.4], id="beside a reward")]
"""Advantages by the reward of the task, of the calls of a row."""


@pytest.mark.parametrize("own", REWARDED)
@pytest.mark.parametrize(("divergence", "beta"), VARIANTS)
def test_the_local_gradient_is_that_of_the_formula(divergence: str, beta: float, own: list[float]) -> None:
    policy, teacher = models()
    rows, _ = taught(policy, teacher, own, divergence=divergence, beta=beta)
    policy.zero_grad()
    for row in rows:
        mine = torch.log_softmax(policy(torch.tensor([list(row.token_ids)]))[0], -1)
        with torch.no_grad():
            theirs = torch.log_softmax(teacher(torch.tensor([list(row.token_ids)]))[0], -1)
        calls = len(row.segments)
        for number, segment in enumerate(row.segments):
            of_task = own[min(number, len(own) - 1)]
            for t in range(segment.start, segment.end):
                q, p = mine[t - 1, row.token_ids[t]], theirs[t - 1, row.token_ids[t]]
                ratio = math.exp(float(p) - float(q.detach()))
                advantage = of_task + 0.7 * formula(ratio, divergence, beta)
                assert row.advantages[t] == pytest.approx(advantage, rel=1e-5, abs=1e-5)
                weight = 1 / (3 * (segment.end - segment.start))
                assert row.weights[t] == pytest.approx(weight) and calls == len(SPANS[row.row_id][1])
                (-weight * advantage * q).backward(retain_graph=True)
    by_hand = gradients(policy)
    policy.zero_grad()
    tokens = tokens_of(rows).to("cpu", torch.float64)
    scores = token_logprobs(policy, tokens.packed, tokens.temperature)
    terms = Terms(
        logp=scores.logprobs,
        old=tokens.old,
        advantages=tokens.advantages,
        weights=tokens.weights,
        segments=tokens.segments,
        stale=torch.zeros(len(tokens), dtype=torch.bool),
    )
    policy_loss(terms, RECIPE).total.backward()  # type: ignore[no-untyped-call]
    assert relative(gradients(policy), by_hand) < 1e-5 and float(by_hand.norm()) > 1e-3


@pytest.mark.parametrize("own", REWARDED)
@pytest.mark.parametrize(("divergence", "beta"), VARIANTS)
def test_verl_gets_the_same_advantages_token_by_token(divergence: str, beta: float, own: list[float]) -> None:
    rows_of_verl = pytest.importorskip("agl_verl.rows")
    policy, teacher = models()
    rows, said = taught(policy, teacher, own, divergence=divergence, beta=beta)
    for row in rows:
        columns = rows_of_verl.train_row(row, RECIPE).columns()
        start = row.mask.index(1)
        wanted = [a * w for a, w in zip(row.advantages, row.weights, strict=True)][start:]
        assert columns.carrier.tolist() == wanted and any(wanted)
        assert columns.weights.tolist() == list(row.weights)[start:]
        for segment in row.segments:
            part = row.metadata["tokens"]["teacher"][segment.start : segment.end]
            assert part == unpack(pack(said[segment.call_id]))
