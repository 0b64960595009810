"""What drivers make of edited rows: the local gradient against the formula in float64, and verl's columns."""

from __future__ import annotations

import math

import pytest
import torch

from agl_distill.edit import pack, unpack
from agl_local.training.batch import tokens_of
from agl_local.training.logprobs import token_logprobs
from agl_local.training.loss import Terms, policy_loss
from plugins.distill.tests.taught_rows import RECIPE, REWARDED, SPANS, VARIANTS, formula, models, taught
from plugins.local.tests.driver_fixtures import gradients, relative


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
