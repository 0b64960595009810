"""Several policies in one step: each is judged by its own version, compared with itself, gets its part."""

from __future__ import annotations

import pytest
from core.credit.builders import make_record, one_call

from agentlightning.credit import assign
from agentlightning.credit.accounts import policy_batch
from agentlightning.credit.fingerprint import fingerprint_rollouts
from agentlightning.types import Call, Recipe, Record, Reward

GRPO = Recipe(name="t", credit="per_agent")


def game(n: int, wolf: float, villager: float, **versions: int) -> Record:
    """A rollout in which a wolf and a villager speak, each with a reward of its side, and a judge besides."""
    rollout = f"r{n}"

    def said(sequence: int, agent: str, policy: str, **fields: object) -> Call:
        tags = {"agent": agent, "side": policy}
        fields = {"policy": policy, "policy_version": versions.get(policy, 0), **fields}
        return one_call(rollout, sequence=sequence, tags=tags, **fields)

    calls = [
        said(0, "wolf", "wolves"),
        said(1, "seer", "town"),
        said(2, "seer", "town"),
        said(3, "referee", "judge", selected=False),
    ]
    rewards = [Reward(value=wolf, agent="wolf"), Reward(value=villager, agent="seer")]
    return make_record(rollout, calls, rewards=rewards, sample=n, task_id="t")


def test_a_policy_is_compared_with_itself_whatever_the_recipe_groups_by():
    records = [game(0, 1.0, -1.0), game(1, -1.0, 1.0), game(2, -1.0, 1.0)]
    for group_by in (["group"], ["task", "side"], ["group", "policy"]):
        recipe = Recipe(name="t", credit="per_agent", group_by=group_by)
        batch = assign(records, recipe, version={"wolves": 0, "town": 0})
        found = {(row.rollout_id, row.policy): row.segments[-1].advantage for row in batch.rows}
        assert found["r0", "wolves"] == pytest.approx(4 / 3) == -found["r0", "town"]
        assert found["r1", "wolves"] == pytest.approx(-2 / 3) == -found["r1", "town"]
        assert all(ledger.sums and ledger.left_out == {"frozen-policy": 1} for ledger in batch.ledgers)
    one = assign([game(0, 1.0, 1.0)], GRPO).rows[-1].metadata["calls"]  # of two policies as well: by itself
    assert {account["group"][0] for account in one.values()} == {"policy=wolves"}


def test_rows_are_judged_by_their_own_policys_version():
    records = [game(0, 1.0, -1.0, wolves=4, town=7), game(1, 0.0, 0.5, wolves=5, town=7)]
    batch = assign(records, GRPO, version={"wolves": 5, "town": 7})
    assert batch.ledgers[0].left_out == {"frozen-policy": 1, "stale": 1} and batch.ledgers[1].trained == 3
    assert {row.policy: row.metadata["staleness"] for row in batch.rows} == {"wolves": 0, "town": 0}
    lax = Recipe(name="t", credit="per_agent", max_staleness=1)
    late = assign(records, lax, version={"wolves": 5, "town": 7})
    assert sorted(r.metadata["staleness"] for r in late.rows if r.policy == "wolves") == [0, 1]
    unknown = assign(records, GRPO, version={"wolves": None, "town": None})
    assert not any(ledger.left_out.get("stale") for ledger in unknown.ledgers)


def test_each_driver_gets_its_rows_and_figures():
    records = [game(0, 1.0, -1.0), game(1, -1.0, 1.0)]
    batch = assign(records, GRPO, version={"wolves": 0, "town": 0, "idle": 3})
    wolves, town, idle = (policy_batch(batch, name) for name in ("wolves", "town", "idle"))
    assert len(wolves.rows) == 2 and len(town.rows) == 4 and not idle.rows
    assert [row for row in batch.rows if row in wolves.rows or row in town.rows] == batch.rows
    assert wolves.metrics["calls"] == wolves.metrics["calls_trained"] == 2 and town.metrics["calls"] == 4
    assert batch.metrics["left_out/frozen-policy"] == 2 and "left_out/frozen-policy" not in wolves.metrics
    assert wolves.metrics["credit_mean"] == 0.0 and wolves.metrics["credit_count"] == 2
    assert "credit_mean" not in idle.metrics and idle.metrics["rows"] == idle.metrics["calls"] == 0
    assert all(p.metrics["rollouts"] == 2 and p.ledgers == batch.ledgers for p in (wolves, town, idle))
    names = ["calls", "calls_trained", "calls_unpaired", "merged", "groups_zero_std", "groups_of_one"]
    assert sum(p.metrics["groups"] for p in (wolves, town)) == batch.metrics["groups"] == 2
    assert all(name in wolves.metrics for name in names)
    assert "credit_mean" not in batch.metrics and not assign(records, GRPO, version=0).policies


def test_a_part_is_fingerprinted_with_its_own_rows():
    records = [game(0, 1.0, -1.0), game(1, -1.0, 1.0)]
    batch = assign(records, GRPO, version={"wolves": 0, "town": 0})
    of = {
        name: fingerprint_rollouts(
            policy_batch(batch, name), records, run_id="r", step=0, policy=name, version=0
        )
        for name in ("wolves", "town")
    }
    assert [s.rows for s in of["wolves"]] == [1, 1] and [s.rows for s in of["town"]] == [2, 2]
    assert of["wolves"][0].tokens_digest != of["town"][0].tokens_digest
    assert of["wolves"][0].ledger == of["town"][0].ledger  # a rollout's account is all policies'
