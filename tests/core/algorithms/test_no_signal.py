"""A run that has stopped learning ends at the third such step, also across a checkpoint."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from core.credit.builders import make_record, one_call

from agentlightning import Trainer
from agentlightning.algorithms.counters import NoSignalGuard, NothingTrained, nothing_learned
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.credit import assign
from agentlightning.recipes import GRPO
from agentlightning.types import (
    Attempt,
    Batch,
    Ledger,
    Record,
    Reward,
    Rollout,
    RolloutStatus,
    Row,
    UsageError,
)
from agentlightning.types.failure import TRACEBACK

ROW = Row(
    row_id="r/0",
    rollout_id="r",
    policy="policy",
    token_ids=[1, 2],
    mask=[0, 1],
    advantages=[0.0, 0.0],
    logprobs=[0.0, -1.0],
    weights=[0.0, 1.0],
    versions=[-1, 0],
)


def batch(out: dict[str, int] | None = None, **metrics: float) -> Batch:
    return Batch(rows=[], ledgers=[Ledger("r", made=1, left_out=out or {})], metrics=metrics)


@pytest.mark.parametrize(
    ("found", "error", "said"),
    [
        (batch({"not-selected": 1}, reward_count=1), NothingTrained, r"3 steps in a row .* 1 × not-selected"),
        (batch(reward_count=1), NothingTrained, "made no model call"),
        (batch({"distill-failed": 1}, rollouts=1), NothingTrained, r"3 steps in a row .* 1 × distill-failed"),
        (batch({"failed-rollout": 1}), NothingRewarded, "steps 4 to 6: not one rollout got a reward"),
    ],
)
def test_the_third_step_ends_it(found: Batch, error: type[UsageError], said: str) -> None:
    first = NoSignalGuard(print)
    first.step(3, found, [])
    first.step(4, found, [])
    second = NoSignalGuard(print)
    second.restore(first.state())
    with pytest.raises(error, match=said):
        second.step(5, found, [])


@pytest.mark.parametrize(
    ("idle", "flat", "advice"),
    [(0, False, "left_out/…"), (0, True, "grades in finer steps"), (8, False, "grades in finer steps")],
)
def test_the_advice_at_the_end_fits_the_cause(idle: int, flat: bool, advice: str) -> None:
    said = nothing_learned(2, idle, flat, Counter())
    assert "not one token was trained in 2 steps" in said and advice in said
    assert ("8 had advantage 0" in said) == (idle == 8)


def test_the_end_says_why_calls_of_the_last_step_were_left_out() -> None:
    count = NoSignalGuard(print)
    count.step(0, batch({"no-ids": 1}), [])
    count.step(1, batch({"no-reward": 4, "superseded": 1}), [])
    said = nothing_learned(2, 0, False, count.left_out)
    assert "calls were left out: 4 × no-reward, 1 × superseded." in said and "left_out/…" in said
    assert "no-reward" not in nothing_learned(2, 0, True, count.left_out)


def test_a_step_that_could_learn_begins_the_count_anew() -> None:
    count = NoSignalGuard(print)
    for found in (batch(), batch(), batch(calls_trained=1), batch(), batch(), batch({"zero-std": 1})):
        count.step(0, found, [])
    assert count.no_signal_steps == 0 and count.state() == {"barren": 0}


def test_a_policy_that_gets_nothing_is_said_once() -> None:
    said: list[str] = []
    count = NoSignalGuard(said.append)
    policies: dict[str, dict[str, Any]] = {"a": {"rows": 1}, "b": {"rows": 0, "left_out/stale": 2}}
    found = Batch(rows=[], metrics={"calls_trained": 1.0}, policies=policies)
    for _ in range(2):
        count.step(0, found, [])
    again = NoSignalGuard(said.append)
    again.restore(count.state())
    for _ in range(2):
        again.step(0, found, [])
    assert said == ["3 steps in a row trained nothing of policy 'b': its calls were left out: 2 × stale"]


def test_the_first_step_without_a_reward_says_why_with_a_traceback() -> None:
    said: list[str] = []
    rollout = Rollout(rollout_id="ro-1", status=RolloutStatus.FAILED)
    attempt = Attempt(
        attempt_id="at-1",
        rollout_id="ro-1",
        reason="agent-raised: KeyError: 'x'",
        metadata={TRACEBACK: "agent.py:7 in solve: `task['x']`\nTraceback …"},
    )
    count = NoSignalGuard(said.append)
    failing = batch({"failed-rollout": 1})
    for step in (0, 1):
        count.step(step, failing, [Record(rollout=rollout, attempt=attempt)])
    assert said == [
        "step 1: not one of 1 rollouts got a reward: 1 × agent-raised: KeyError: 'x'\n"
        "The first traceback, of ro-1: agent.py:7 in solve: `task['x']`\nTraceback …"
    ]


@pytest.mark.parametrize("dropped", [True, False])
def test_groups_without_a_spread_are_said_once(dropped: bool) -> None:
    said: list[str] = []
    flat = batch(
        {"zero-std": 1} if dropped else None,
        reward_count=4,
        reward_mean=0.25,
        calls_trained=0 if dropped else 4,
        tokens_trained=0,
    )
    flat.rows = [] if dropped else [ROW]
    count = NoSignalGuard(said.append)
    for step in range(5):
        again = NoSignalGuard(said.append)
        again.restore(count.state())
        count = again
        count.step(step, flat, [])
    [line] = said
    assert line.startswith("steps 1 to 3 taught nothing: in each group all rollouts got the same reward")
    assert "0.250" in line and "agl doctor" in line


def test_rewards_that_the_rule_does_not_read_are_named_with_the_rule_that_does() -> None:
    calls = [one_call("r0", sequence=i) for i in range(2)]
    record = make_record("r0", calls, rewards=[Reward(value=1.0, call_id=call.call_id) for call in calls])
    count = NoSignalGuard(print, "broadcast")
    found = assign([record], GRPO())
    assert found.metrics["reward_count"] == 1 and found.metrics["reward_mean"] == 1.0
    with pytest.raises(NothingTrained, match=r"2 × no-reward: 1 of 1 rollouts .* 'per_call' or 'discounted'"):
        for step in range(3):
            count.step(step, found, [record])


OUTAGE = batch({"failed-rollout": 4}, rollouts=4, **{"failed/model-5xx": 3, "failed/unresponsive": 1})
SILENT = batch({"failed-rollout": 4}, rollouts=4, **{"failed/model-5xx": 3, "failed/agent-raised": 1})


def test_an_outage_does_not_count_like_silence() -> None:
    said: list[str] = []
    count = NoSignalGuard(said.append, limit=2)
    record = make_record("r", status=RolloutStatus.FAILED)
    for step in range(19):
        count.step(step, OUTAGE, [record])
    assert len(said) == 1 and said[0].startswith("step 1: not one of 1 rollouts got a reward")
    count.step(19, SILENT, [record])
    again = NoSignalGuard(said.append, limit=2)
    again.restore(count.state())
    assert (again.no_signal_steps, again.outage_steps) == (1, 19)
    with pytest.raises(NothingRewarded, match="20 steps were outages, the last of them step 21"):
        again.step(20, OUTAGE, [record])


def test_a_step_that_could_learn_ends_an_outage() -> None:
    count = NoSignalGuard(print, limit=2)
    for found in (OUTAGE, SILENT, batch(calls_trained=1)):
        count.step(0, found, [])
    assert (count.no_signal_steps, count.outage_steps) == (0, 0)


def test_the_limit_is_a_setting() -> None:
    count = NoSignalGuard(print, limit=1)
    with pytest.raises(NothingRewarded, match="steps 5 to 5: not one rollout"):
        count.step(4, batch({"failed-rollout": 1}), [])
    assert Trainer(no_signal_steps=7).config.training.no_signal_steps == 7
    assert Trainer().config.training.no_signal_steps == 3
