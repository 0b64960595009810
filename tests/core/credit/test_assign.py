"""Credit assignment as a whole: properties that hold for every world and every recipe."""

from __future__ import annotations

import math
import re
from random import Random

import msgspec
import pytest
from core.credit.builders import PATIENT, make_call, make_record, make_wire, one_call, world, worlds
from core.credit.test_rows import RECIPES
from hypothesis import given, settings, strategies as st
from marks import examples

from agentlightning import semconv
from agentlightning.credit import assign, rows_digest
from agentlightning.credit.assign import StepCredit
from agentlightning.credit.baselines import Advantage
from agentlightning.recipes import GRPO
from agentlightning.types import Attempt, Ledger, Recipe, Record, Reward, RolloutStatus, Row
from agentlightning.types.arrays import to_bytes

PLAIN = Recipe(name="t")


def trained(rows: list[Row]) -> dict[str, tuple[Row, int, int]]:
    """Call id → its trained segment; fails if a call has two."""
    found: dict[str, tuple[Row, int, int]] = {}
    for row in rows:
        for segment in row.segments:
            if segment.trained:
                assert segment.call_id not in found
                found[segment.call_id] = (row, segment.start, segment.end)
    return found


@PATIENT
@given(worlds(), RECIPES)
def test_every_call_is_trained_once_or_accounted_for(records, recipe):
    batch = assign(records, recipe, version=2)
    found = trained(batch.rows)
    for record in records:
        (ledger,) = [one for one in batch.ledgers if one.rollout_id == record.rollout.rollout_id]
        assert ledger.sums
        assert ledger.made == len(record.calls)
        assert ledger.trained == sum(call.call_id in found for call in record.calls)
        assert sum(ledger.verdicts.values()) == ledger.recorded
        assert ledger.merged <= ledger.trained
    assert batch.metrics["calls"] == batch.metrics["calls_trained"] + sum(
        n for name, n in batch.metrics.items() if name.startswith("left_out/")
    )


@PATIENT
@given(worlds(), RECIPES)
def test_rows_reproduce_every_calls_ids(records, recipe):
    calls = {call.call_id: call for record in records for call in record.calls}
    batch = assign(records, recipe, version=2)
    for row in batch.rows:
        n = len(row.token_ids)
        per_token = [row.mask, row.advantages, row.logprobs, row.weights, row.versions]
        assert [len(values) for values in per_token] == [n] * 5
        covered = [0] * n
        for segment in row.segments:
            call = calls[segment.call_id]
            assert row.token_ids[: segment.start] == call.prompt_ids
            assert row.token_ids[segment.start : segment.end] == call.response_ids
            assert (call.policy, call.rollout_id) == (row.policy, row.rollout_id)
            if segment.trained:
                span = slice(segment.start, segment.end)
                assert row.logprobs[span] == call.logprobs
                assert set(row.advantages[span]) == {segment.advantage}
                assert set(row.versions[span]) == {call.policy_version}
                assert call.sampling["temperature"] == row.temperature
                covered[span] = [c + 1 for c in covered[span]]
        assert covered == row.mask  # trained exactly where a call's own response stands, once
        for t in range(n):
            if not row.mask[t]:
                assert (row.advantages[t], row.logprobs[t], row.weights[t], row.versions[t]) == (0, 0, 0, -1)
            else:
                assert row.weights[t] > 0 and math.isfinite(row.advantages[t])


@PATIENT
@given(worlds(), RECIPES, st.randoms(use_true_random=False))
def test_the_order_of_records_and_calls_does_not_matter(records, recipe, random):
    expected = assign(records, recipe, version=2)
    shuffled = [msgspec.structs.replace(r, calls=random.sample(r.calls, len(r.calls))) for r in records]
    random.shuffle(shuffled)
    found = assign(shuffled, recipe, version=2)
    assert found == expected
    assert rows_digest(found.rows) == rows_digest(expected.rows)


@PATIENT
@given(worlds(), RECIPES)
def test_assign_leaves_its_input_alone(records, recipe):
    before = msgspec.msgpack.encode(records, enc_hook=to_bytes)
    assign(records, recipe, version=2)
    assert msgspec.msgpack.encode(records, enc_hook=to_bytes) == before


@PATIENT
@given(worlds(clean=True), RECIPES)
def test_merging_changes_rows_but_neither_advantages_nor_weights(records, recipe):
    merged, single = (
        assign(records, msgspec.structs.replace(recipe, merge=m), version=2) for m in (True, False)
    )
    a, b = trained(merged.rows), trained(single.rows)
    assert a.keys() == b.keys()
    for call_id, (row, start, end) in a.items():
        other, s, e = b[call_id]
        assert row.advantages[start:end] == other.advantages[s:e]
        assert row.weights[start:end] == pytest.approx(other.weights[s:e], rel=1e-12)
    assert merged.metrics["merged"] == len(single.rows) - len(merged.rows)
    assert merged.metrics["tokens"] <= single.metrics["tokens"]


@PATIENT
@given(worlds(clean=True), RECIPES, st.data())
def test_a_failed_or_unrewarded_rollout_is_as_if_it_had_never_been(records, recipe, data):
    victim = data.draw(st.sampled_from(records))
    broken = data.draw(st.sampled_from(["failed", "cancelled", "none", "nan"]))
    rest = [record for record in records if record is not victim]
    if broken in ("failed", "cancelled"):
        rollout = msgspec.structs.replace(victim.rollout, status=RolloutStatus(broken))
        spoilt = msgspec.structs.replace(victim, rollout=rollout)
    else:
        value = (
            [] if broken == "none" else [msgspec.structs.replace(r, value=math.nan) for r in victim.rewards]
        )
        spoilt = msgspec.structs.replace(victim, rewards=value)
    with_it, without = assign([*rest, spoilt], recipe, version=2), assign(rest, recipe, version=2)
    assert with_it.rows == without.rows
    for name in (
        "groups",
        "groups_of_one",
        "groups_zero_std",
        "reward_mean",
        "reward_std",
        "reward_count",
    ):
        assert with_it.metrics.get(name) == without.metrics.get(name)


@PATIENT
@given(worlds(), RECIPES)
def test_advantages_follow_their_account(records, recipe):
    batch = assign(records, recipe, version=2)
    for row in batch.rows:
        for segment in row.segments:
            if segment.trained:
                seen = row.metadata["calls"][segment.call_id]
                expected = 0.0 if seen["zero_reason"] else (seen["credit"] - seen["baseline"]) / seen["scale"]
                assert row.advantages[segment.start] == expected == segment.advantage


@PATIENT
@given(worlds(clean=True))
def test_group_advantages_of_a_broadcast_sum_to_zero_over_rollouts(records):
    batch = assign(records, PLAIN)
    groups: dict[tuple[str, str], dict[str, float]] = {}  # a policy is compared with itself
    for row in batch.rows:
        for segment in row.segments:
            if segment.trained:
                key = row.metadata["group_id"], row.policy
                groups.setdefault(key, {})[row.rollout_id] = segment.advantage
    assert [sum(values.values()) for values in groups.values()] == pytest.approx(
        [0.0] * len(groups), abs=1e-12
    )


def test_reasons_for_which_credit_itself_leaves_calls_out():
    calls = [one_call(sequence=i) for i in range(3)]
    records = [make_record(calls=calls, reward=1.0, rewards=[Reward(value=1.0, call_id="r0-c1")])]
    assert assign(records, Recipe(name="t", credit="last")).ledgers[0].left_out == {"not-last": 2}
    assert assign(records, Recipe(name="t", credit="per_call")).ledgers[0].left_out == {"no-reward": 2}


def test_calls_made_past_the_gateway_are_in_the_ledger():
    call = one_call(response_id="x")
    stray = make_wire(one_call(response_id="y"))
    ledger = assign([make_record(calls=[call], wire=[make_wire(call), stray], reward=1.0)], PLAIN).ledgers[0]
    assert (ledger.made, ledger.recorded, ledger.trained, ledger.left_out) == (2, 1, 1, {"not-recorded": 1})
    assert ledger.verdicts == {"exact": 1}


def test_refused_calls_are_in_the_ledger_by_reason():
    call = one_call(response_id="x")
    no = make_wire(make_call("n", None, None, span_id="no"), **{semconv.REFUSED: "unsupported-field"})
    ledger = assign([make_record(calls=[call], wire=[make_wire(call), no], reward=1.0)], PLAIN).ledgers[0]
    assert (ledger.made, ledger.recorded, ledger.trained) == (2, 1, 1)
    assert ledger.left_out == {"refused-unsupported-field": 1} and ledger.sums


def test_metrics_by_hand():
    records = [
        make_record("a", reward=1.0, rewards=[Reward(value=5.0, name="style")]),
        make_record("b", reward=0.0, sample=1),
        make_record("c", status=RolloutStatus.FAILED, reason="timeout", sample=2),
        make_record("d", sample=3),
    ]
    metrics = assign(records, PLAIN).metrics
    expected = {
        "rollouts": 4,
        "rollouts_failed": 1,
        "rollouts_no_reward": 1,
        "failed/timeout": 1,
        "failed/no-reward": 1,
        "reward_count": 2,
        "reward_mean": 0.5,
        "reward/style": 5.0,
        "reward/reward": 0.5,
        "groups": 1,
        "groups_of_one": 0,
        "groups_zero_std": 0,
        "calls": 4,
        "calls_trained": 2,
        "merged": 0,
        "left_out/failed-rollout": 1,
        "left_out/no-reward": 1,
        "rows": 2,
        "tokens": 8,
        "tokens_trained": 4,
        "exact": 0.0,
        "verdicts/gateway-only": 4,
        "advantage_abs_mean": 0.5,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert metrics["reward_std"] == pytest.approx(math.sqrt(0.5))


def test_figures_without_data_are_absent_not_zero():
    empty = assign([], PLAIN)
    assert (empty.rows, empty.ledgers) == ([], [])
    assert not {"reward_mean", "reward_std", "exact", "advantage_abs_mean"} & empty.metrics.keys()
    assert "reward_mean" not in assign([make_record()], PLAIN).metrics


def test_rows_come_by_group_and_sample_and_are_numbered_by_what_they_hold():
    records = [
        make_record(
            f"r{9 - i}", [one_call(f"r{9 - i}", sequence=j) for j in (1, 0)], group=g, sample=s, reward=1.0
        )
        for i, (g, s) in enumerate([("b", 0), ("a", 1), ("a", 0)])
    ]
    ids = [row.row_id for row in assign(records, PLAIN).rows]
    assert ids == [f"{r}/{j}" for r in ("r7", "r8", "r9") for j in (0, 1)]


def test_rows_do_not_depend_on_the_order_in_which_calls_arrived_nor_on_the_attempt():
    def digest(attempt, order):
        calls = [
            make_call(f"{attempt}-{n}", [1, token], [token, 9], n, "r", attempt_id=f"r-{attempt}")
            for n, token in enumerate(order)
        ]
        record = make_record("r", calls, reward=1.0)
        record.attempt = Attempt(attempt_id=f"r-{attempt}", rollout_id="r")
        return rows_digest(assign([record], PLAIN).rows)

    assert digest("at-1", (4, 5, 6)) == digest("at-2", (6, 4, 5))


def test_rules_and_baselines_of_plugins():
    def length(record, recipe):
        return {call.call_id: float(len(call.response_ids)) for call in record.calls}

    def one(groups, recipe):
        return {key: dict.fromkeys(values, 1.0) for key, values in groups.items()}

    records = [
        make_record(calls=[one_call(n=3), one_call(sequence=1, n=5)], reward=0.0),
        make_record("r1", reward=0.0),
    ]
    recipe = Recipe(name="t", credit="length", baseline="one")
    batch = assign(records, recipe, rules={"length": length}, baselines={"one": one})
    assert [row.segments[0].advantage for row in batch.rows] == [2.0, 4.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"r0-c0": math.nan}, "missing is None"),
        ({"r9": 1.0}, "not shown.*r9"),
        ({"r0-c0": 1e308}, r"beyond 1e\+100"),
        ({"r0-c0": 10**400}, "OverflowError"),
        ({"r0-c0": "high"}, "TypeError"),
        ([1.0], "a list, not a mapping"),
        (KeyError("no agent"), "KeyError: 'no agent'"),
    ],
)
def test_what_a_rule_cannot_answer_costs_that_rollout_alone(answer, words, caplog):
    def mine(record, recipe):
        if record.rollout.rollout_id == "r0" and isinstance(answer, Exception):
            raise answer
        return answer if record.rollout.rollout_id == "r0" else {c.call_id: 1.0 for c in record.calls}

    records = [make_record(reward=1.0), make_record("r1", reward=1.0)]
    batch = assign(records, Recipe(name="t", credit="mine", baseline="none"), rules={"mine": mine})
    assert [row.rollout_id for row in batch.rows] == ["r1"]
    assert [ledger.left_out for ledger in batch.ledgers] == [{"credit-error": 1}, {}]
    assert all(ledger.sums for ledger in batch.ledgers)
    assert re.search(f"credit rule 'mine' has no answer for rollout r0.*{words}", caplog.text)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"credit": "boradcast"}, "recipe.credit.*boradcast.*broadcast"),
        ({"baseline": "mean"}, "recipe.baseline.*mean.*rloo"),
        ({"loss_aggregation": "batch"}, "recipe.loss_aggregation.*constant"),
        ({"scale": "mad"}, "recipe.scale"),
        ({"loss_divisor": 0.0}, "recipe.loss_divisor"),
        ({"loss_divisor": math.inf}, "recipe.loss_divisor"),
        ({"gamma": 1.5}, "recipe.gamma"),
        ({"max_staleness": -1}, "recipe.max_staleness"),
        ({"temperature": 0.0}, "recipe.temperature"),
    ],
)
def test_recipes_that_credit_cannot_honour_are_named(fields, words):
    with pytest.raises(ValueError, match=words):
        assign([make_record(reward=1.0)], Recipe(name="t", **fields))


def test_ids_that_occur_twice_are_named():
    with pytest.raises(ValueError, match="rollout 'r0' occurs twice"):
        assign([make_record(reward=1.0), make_record(reward=1.0)], PLAIN)
    with pytest.raises(ValueError, match="call 'r0-c0' occurs twice"):
        assign([make_record(calls=[one_call(), one_call()], reward=1.0)], PLAIN)


def test_a_ledger_that_does_not_sum_says_so():
    assert not Ledger(rollout_id="r", made=2, trained=1).sums


def test_interleaved_agents_merge_per_agent_and_train_fewer_tokens():
    line = {"A": [1], "B": [2]}
    calls = []
    for i in range(10):
        agent = "AB"[i % 2]
        prompt = [*line[agent], 5, 5]
        calls.append(make_call(f"c{i}", prompt, [6, 7], i, tags={"agent": agent}))
        line[agent] = [*prompt, 6, 7]
    records = [make_record(calls=calls, reward=1.0)]
    merged, single = assign(records, PLAIN), assign(records, Recipe(name="t", merge=False))
    assert [[s.call_id for s in row.segments] for row in merged.rows] == [
        [f"c{i}" for i in range(start, 10, 2)] for start in (0, 1)
    ]
    assert merged.ledgers[0].merged == 8
    assert (merged.metrics["tokens"], single.metrics["tokens"]) == (42, 130)
    # One rollout has nothing to be compared with: its tokens are in the rows, and nothing pulls at them.
    for batch in (merged, single):
        assert (batch.metrics["tokens_trained"], batch.metrics["tokens_zero_advantage"]) == (0, 20)
    reached = assign(records, msgspec.structs.replace(PLAIN, kl=0.1)).metrics
    assert (reached["tokens_trained"], reached["tokens_zero_advantage"]) == (20, 0)


def test_two_hundred_calls_of_ten_thousand_tokens():
    records = []
    for n in range(2):
        line: list[int] = []
        calls = []
        for i in range(100):
            prompt = [*line, *([i] * 60)]
            calls.append(make_call(f"r{n}c{i}", prompt, [n] * 40, i, rollout_id=f"r{n}"))
            line = [*prompt, *([n] * 40)]
        records.append(make_record(f"r{n}", calls, reward=float(n)))
    batch = assign(records, GRPO())
    assert [len(row.token_ids) for row in batch.rows] == [10_000, 10_000]
    assert batch.metrics["tokens_trained"] == 8_000
    assert len(rows_digest(batch.rows)) == 64


@settings(PATIENT, max_examples=examples(20))
@given(st.integers(0, 10_000))
def test_the_same_world_gives_the_same_digest(seed):
    digests = {rows_digest(assign(world(Random(seed)), GRPO()).rows) for _ in range(2)}
    assert len(digests) == 1


def in_groups(records: list[Record]) -> list[list[Record]]:
    """The records by group, as a run adds them."""
    groups: dict[str | None, list[Record]] = {}
    for record in records:
        groups.setdefault(record.rollout.group_id or record.rollout.task_id, []).append(record)
    return list(groups.values())


@PATIENT
@given(worlds(), RECIPES, st.randoms())
def test_credit_group_by_group_is_that_of_the_whole_step(records, recipe, chance):
    policies = {call.policy for record in records for call in record.calls}
    version = {"policy": 2, **dict.fromkeys(sorted(policies), 2)} if len(policies) > 1 else 2
    credit = StepCredit(recipe, version=version)
    groups = in_groups(records)
    chance.shuffle(groups)
    if credit.spans_batch:
        for group in groups:
            credit.survey(group)
    for group in groups:
        credit.add(group)
    out: dict[str, str] = {}
    explained: dict[str, Advantage] = {}
    assert credit.batch() == assign(records, recipe, version=version, out=out, explained=explained)
    assert (credit.out, credit.advantages.calls) == (out, explained)


def test_a_batch_of_the_groups_so_far_is_that_of_their_records():
    first, second = (
        [make_record(f"{g}{i}", [one_call(f"{g}{i}")], i, group=g, sample=i) for i in (0, 1)] for g in "ab"
    )
    credit = StepCredit(PLAIN)
    credit.add(first)
    assert credit.batch() == assign(first, PLAIN)
    credit.add(second)
    assert credit.batch() == assign([*first, *second], PLAIN)


def test_what_spans_the_batch_is_surveyed_before_it_is_added():
    recipe = Recipe(name="t", baseline="batch")
    credit = StepCredit(recipe)
    credit.survey([make_record("a", [one_call("a")], 1.0), make_record("b", [one_call("b")], 0.0)])
    with pytest.raises(ValueError, match="'a' was surveyed and never added"):
        credit.batch()
    credit.add([make_record("a", [one_call("a")], 1.0)])
    with pytest.raises(ValueError, match="survey all records"):
        credit.add([make_record("e", [one_call("e")], 1.0)])
    with pytest.raises(ValueError, match="rollout 'a' occurs twice"):
        credit.add([make_record("a", [one_call("a")], 1.0)])


@pytest.mark.parametrize(
    ("recipe", "spans"),
    [
        (Recipe(name="t"), False),
        (Recipe(name="t", baseline="rloo", group_by=["group", "side", "turn"]), False),
        (Recipe(name="t", baseline="batch"), True),
        (Recipe(name="t", group_by=["task"]), True),
        (Recipe(name="t", group_by=["batch", "side"]), True),
    ],
)
def test_which_recipes_compare_rollouts_of_different_groups(recipe, spans):
    assert StepCredit(recipe).spans_batch is spans
    assert StepCredit(recipe, baselines={recipe.baseline: lambda groups, _: groups}).spans_batch
