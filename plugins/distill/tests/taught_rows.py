"""Rows with a teacher's advantages, and the formula that these follow, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from agentlightning.credit.rows import set_weights
from agentlightning.types import Batch, Ledger, Row
from agl_distill.edit import edited, pack
from agl_distill.recipe import distill
from agl_local.network.model import CausalLM
from plugins.local.tests.driver_fixtures import make_row, reference_logprobs, tiny_model

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
