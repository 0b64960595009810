"""Preferences on the local driver: the gradient is that of DPO's loss, and learning orders the pairs."""

from __future__ import annotations

import math

import pytest
import torch

from agentlightning.types import Row, Segment
from agl_audit.stored.examples import Example
from agl_audit.stored.learning import sigmoid, stored_recipe
from agl_local.training.score import row_logprobs
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import gradients, relative, tiny_model


def row(name: str, ids: list[int], prompt: int, temperature: float = 1.0) -> Row:
    mask = [0] * prompt + [1] * (len(ids) - prompt)
    zeros = [0.0] * len(ids)
    return Row(
        row_id=name, rollout_id=name[0], policy="policy", token_ids=ids, mask=mask, advantages=zeros,
        logprobs=zeros, weights=zeros, versions=[-1] * len(ids), temperature=temperature,
        segments=[Segment(name, prompt, len(ids), 0.0)],
    )  # fmt: skip


BETTER = Example("a", "g", 0, 1.0, (row("a/0", [1, 2, 3, 4], 2), row("a/1", [5, 6, 7], 1)))
WORSE = Example("b", "g", 1, 0.0, (row("b/0", [1, 2, 8, 9, 3], 2),))


def logp(model: torch.nn.Module, example: Example) -> torch.Tensor:
    """log pi of everything the policy wrote, the plain way."""
    total = torch.zeros(())
    for one in example.rows:
        ids = torch.tensor([list(one.token_ids)])
        logprobs = torch.log_softmax(model(ids)[0] / one.temperature, -1)
        for t, on in enumerate(one.mask):
            if on:
                total = total + logprobs[t - 1, ids[0, t]]
    return total


def test_the_score_of_a_row_is_the_sum_over_its_trained_tokens() -> None:
    model = tiny_model()
    rows = [*BETTER.rows, *WORSE.rows, row("c/0", [1, 2, 3, 4], 2, temperature=0.5)]
    for micro in (1, 10_000):
        found = row_logprobs(model, rows, micro_tokens=micro)
        wanted = [float(logp(model, Example("", "", 0, 0.0, (one,))).detach()) for one in rows]
        assert found == pytest.approx(wanted, abs=1e-5)


def test_the_gradient_of_a_pair_is_that_of_the_preference_loss() -> None:
    model, beta = tiny_model(), 0.7
    reference = {"a": -3.0, "b": -9.0}
    now = {e.rollout_id: float(logp(model, e).detach()) for e in (BETTER, WORSE)}
    margin = beta * ((now["a"] - reference["a"]) - (now["b"] - reference["b"]))
    loss = -torch.nn.functional.logsigmoid(
        beta * ((logp(model, BETTER) - reference["a"]) - (logp(model, WORSE) - reference["b"]))
    )
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = gradients(model)
    model.zero_grad()
    pull = beta * sigmoid(-margin)
    rows = [*BETTER.weigh(pull, 1.0), *WORSE.weigh(-pull, 1.0)]
    seen: list[torch.Tensor] = []
    updater = Updater(model, stored_recipe("dpo"), lr=0.0, clip_norm=None)
    step = updater.optimizer.step
    updater.optimizer.step = lambda *a, **k: (seen.append(gradients(model)), step(*a, **k))[1]  # type: ignore[method-assign]
    updater.update(rows, 0)
    assert len(seen) == 1 and relative(seen[0], wanted) < 1e-5
    assert float(loss.detach()) == pytest.approx(math.log1p(math.exp(-margin)), rel=1e-5)


def test_learning_from_a_pair_makes_the_better_answer_likelier_than_the_worse() -> None:
    model, beta = tiny_model(), 0.5
    updater = Updater(model, stored_recipe("dpo"), lr=3e-3)
    rows = [*BETTER.rows, *WORSE.rows]
    start = row_logprobs(model, rows)
    margins = []
    for _ in range(12):
        gain = [b - a for a, b in zip(start, row_logprobs(model, rows), strict=True)]
        margins.append(beta * (gain[0] + gain[1] - gain[2]))
        pull = beta * sigmoid(-margins[-1])
        updater.update([*BETTER.weigh(pull, 1.0), *WORSE.weigh(-pull, 1.0)], 0)
    assert margins[0] == 0.0 and margins == sorted(margins) and margins[-1] > 1.0


def test_a_sigmoid_of_a_large_number_is_finite() -> None:
    assert (sigmoid(1000.0), sigmoid(-1000.0), sigmoid(0.0)) == (1.0, 0.0, 0.5)
