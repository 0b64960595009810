"""A run that has stopped learning ends at the third such step, also across a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.algorithms.barren import Barren, NothingTrained
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.types import Batch, Ledger, UsageError


def batch(out: dict[str, int] | None = None, **metrics: float) -> Batch:
    return Batch(rows=[], ledgers=[Ledger("r", made=1, out=out or {})], metrics=metrics)


@pytest.mark.parametrize(
    ("found", "error", "said"),
    [
        (batch({"not-selected": 1}, reward_count=1), NothingTrained, r"3 steps in a row .* 1 × not-selected"),
        (batch(reward_count=1), NothingTrained, "made no model call"),
        (batch({"failed-rollout": 1}), NothingRewarded, "steps 4 to 6: not one rollout got a reward"),
    ],
)
def test_the_third_step_ends_it(found: Batch, error: type[UsageError], said: str) -> None:
    first = Barren(print)
    first.step(3, found, [])
    first.step(4, found, [])
    second = Barren(print)
    second.restore(first.state())
    with pytest.raises(error, match=said):
        second.step(5, found, [])


def test_a_step_that_could_learn_begins_the_count_anew() -> None:
    count = Barren(print)
    for found in (batch(), batch(), batch(calls_trained=1), batch(), batch(), batch({"zero-spread": 1})):
        count.step(0, found, [])
    assert count.steps == 0 and count.state() == {"barren": 0}


def test_a_policy_that_gets_nothing_is_said_once() -> None:
    said: list[str] = []
    count = Barren(said.append)
    policies: dict[str, dict[str, Any]] = {"a": {"rows": 1}, "b": {"rows": 0, "out/stale": 2}}
    found = Batch(rows=[], metrics={"calls_trained": 1.0}, policies=policies)
    for _ in range(2):
        count.step(0, found, [])
    again = Barren(said.append)
    again.restore(count.state())
    for _ in range(2):
        again.step(0, found, [])
    assert said == ["3 steps in a row trained nothing of policy 'b': its calls were left out: 2 × stale"]
