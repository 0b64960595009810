"""One token, from reward to weight."""

from __future__ import annotations

import pytest
from core.credit.builders import make_call, make_record, one_call

from agentlightning.credit import assign, trace_token
from agentlightning.recipes import GRPO


def batch():
    calls = [make_call("a", [1], [2], 0, tags={"agent": "A"}), make_call("b", [1, 2, 3], [4, 5], 1)]
    records = [
        make_record(calls=calls, reward=1.0),
        make_record("r1", [one_call("r1", n=3)], reward=0.0, sample=1),
    ]
    return assign(records, GRPO(scale="none"))


def test_a_token_in_full():
    assert trace_token(batch(), "b", 1) == {
        "call_id": "b",
        "rollout_id": "r0",
        "policy": "default",
        "row_id": "r0/0",
        "position": 4,
        "token_id": 5,
        "logprob": -0.51,
        "version": 0,
        "temperature": 1.0,
        "credit": 1.0,
        "baseline": 0.5,
        "scale": 1.0,
        "group": ["group=g"],
        "flat": "",
        "tags": {},
        "advantage": 0.5,
        "weight": pytest.approx(1 / 6),
        "weight_times_advantage": pytest.approx(1 / 12),
    }


def test_rows_alone_will_do():
    assert trace_token(batch().rows, "a", 0)["tags"] == {"agent": "A"}


def test_what_is_not_there_is_named():
    with pytest.raises(KeyError, match="'z'"):
        trace_token(batch(), "z", 0)
    with pytest.raises(IndexError, match="2 response tokens"):
        trace_token(batch(), "b", 2)
