"""Totals: what steps have in common is summed once, also where several policies report each."""

from __future__ import annotations

import json

from agentlightning.algorithms.counters import Totals
from agentlightning.types import StepReport


def report(policy: str = "p", **metrics: float) -> StepReport:
    return StepReport(run_id="r", step=0, policy=policy, policy_version=1, metrics=metrics)


def test_the_steps_of_one_policy() -> None:
    totals = Totals()
    assert totals.values["logprob_gap_max"] is None and totals.values["rollouts"] == 0
    for gap in (1e-6, 3e-6, 2e-6):
        totals.count(report(rollouts=4.0, tokens_trained=7.0, logprob_gap_max=gap), multi_policy=False)
    assert totals.values["rollouts"] == 12 and totals.values["tokens_trained"] == 21
    assert totals.values["logprob_gap_max"] == 3e-6 and totals.state() == {"totals": totals.values}


def test_what_policies_share_counts_once_and_goes_on_from_a_checkpoint() -> None:
    totals = Totals()
    for _ in range(2):
        totals.collected({"rollouts": 4.0, "tokens_trained": 7.0})
        totals.count(report("a", rollouts=4.0, tokens_trained=5.0), multi_policy=True)
        totals.count(report("b", rollouts=4.0, tokens_trained=2.0, skipped=1.0), multi_policy=True)
    again = Totals()
    again.restore(json.loads(json.dumps(totals.state())))
    again.collected({"rollouts": 4.0, "tokens_trained": 7.0})
    again.count(report("a", tokens_trained=5.0), multi_policy=True)
    assert again.values["rollouts"] == 12 and again.values["tokens_trained"] == 21
    assert again.policies["a"]["tokens_trained"] == 15 and again.policies["b"]["skipped"] == 2
