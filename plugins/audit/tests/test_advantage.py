"""One token, from reward to weight."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from core.credit.builders import PATIENT, make_call, make_record, one_call, walk, worlds
from core.credit.test_ledger import recipes, tables, worlds as eventful_worlds
from core.credit.test_rows import RECIPES
from hypothesis import given, strategies as st

from agentlightning.credit import assign
from agentlightning.credit.baselines import Advantage
from agentlightning.credit.forest import build_forest
from agentlightning.credit.merge_failures import MERGE_FAILURES
from agentlightning.credit.verdicts import REFUSED
from agentlightning.recipes import GRPO, get
from agentlightning.types import Record
from agl_audit.explanation.advantage import REASONS, find_segment, group_values, trace_token, weight_share

GUIDE = Path(__file__).parents[3] / "docs" / "credit.md"


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
        "spread": pytest.approx(0.5**0.5),
        "group": ["group=g"],
        "pool": ["group=g"],
        "zero_reason": "",
        "step": 0.0,
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


@PATIENT
@given(worlds(), st.sampled_from(["rollout", "call", "token", "constant"]))
def test_every_call_is_in_a_row_or_has_a_reason(records: list[Record], loss_aggregation):
    recipe = msgspec.structs.replace(
        GRPO(), loss_aggregation=loss_aggregation, loss_divisor=3.0, baseline="none", scale="none"
    )
    out: dict[str, str] = {}
    explained: dict[str, Advantage] = {}
    batch = assign(records, recipe, out=out, explained=explained)
    for record in records:
        for call in record.calls:
            found = find_segment(batch.rows, call.call_id)
            assert (found is None) == (call.call_id in out)
            if found is None:
                continue
            row, segment = found
            of = weight_share(batch.rows, recipe, row, segment)
            divisor = {
                "rollout": of["rollouts"] * of["own"],
                "call": of["calls"] * of["call"],
                "token": of["tokens"],
                "constant": of["rollouts"] * 3.0,
            }[loss_aggregation]
            assert row.weights[segment.start] == 1.0 / divisor
            group = explained[call.call_id].group
            assert record.rollout.rollout_id in group_values(records, explained, group)


@PATIENT
@given(worlds(clean=True), st.booleans())
def test_links_tell_what_the_ledger_counts(records: list[Record], merge: bool):
    recipe = msgspec.structs.replace(GRPO(), merge=merge)
    batch = assign(records, recipe)
    ledgers = {ledger.rollout_id: ledger for ledger in batch.ledgers}
    for record in records:
        found = build_forest(record.calls, merge=merge, temperature=recipe.temperature).links
        assert found.keys() == {call.call_id for call in record.calls}
        counted = Counter(link.reason for link in found.values() if link.reason)
        assert (
            counted == ledgers[record.rollout.rollout_id].merge_failures
            and counted.keys() <= MERGE_FAILURES.keys()
        )
        assert all(link.text() for link in found.values())


def test_a_branch_and_a_break_name_the_earlier_call():
    ask = [{"role": "user", "content": "2 + 3"}]
    told = [*ask, {"role": "assistant", "content": "5"}, {"role": "user", "content": "sure?"}]
    calls = [
        make_call("a", [1], [2], 0, request={"messages": ask}, response={"content": "5"}),
        make_call("b", [1, 2, 3], [4], 1),
        make_call("c", [1, 2, 6], [7], 2),
        make_call("d", [1, 9, 3], [4], 3, request={"messages": told}),
    ]
    found = build_forest(calls).links
    assert [(n, link.kind, link.earlier, link.reason) for n, link in found.items()] == [
        ("a", "start", None, ""),
        ("b", "extends", "a", ""),
        ("c", "branch", "a", "branch"),
        ("d", "break", "a", "retokenised"),
    ]
    assert found["d"].text().startswith("did not merge with a (retokenised): the earlier answer stands")


def test_every_reason_of_the_guide_has_a_sentence():
    paragraph = GUIDE.read_text().partition("## The ledger")[2].partition("`verdicts` counts")[0]
    # The code behind `refused-` is any that the gateway answers with; the paragraph gives an example.
    found = set(re.findall(r"`([a-z-]+)`", paragraph)) - {"select"}
    reasons = {reason for reason in found if not reason.startswith(REFUSED)}
    assert len(reasons) > 15 and reasons <= REASONS.keys()


def test_a_token_explains_both_levels():
    batch = assign([walk("a", ["s"], 1.0), walk("b", ["s"], 0.0)], get("gigpo", scale="none"))
    token = trace_token(batch, "a-c0", 0)
    assert (token["credit"] - token["baseline"]) / token["scale"] + token["step"] == token["advantage"] == 1.0


@PATIENT
@given(worlds(), RECIPES)
def test_a_token_has_the_advantage_of_its_account(records, recipe):
    batch = assign(records, recipe, version=2)
    for row in batch.rows:
        for segment in row.segments:
            if segment.trained:
                seen = trace_token(batch, segment.call_id, 0)
                expected = 0.0 if seen["zero_reason"] else (seen["credit"] - seen["baseline"]) / seen["scale"]
                assert seen["advantage"] == expected == segment.advantage


@PATIENT
@given(eventful_worlds, recipes, tables)
def test_every_reason_of_a_ledger_has_a_sentence(records, recipe, table):
    batch = assign(records, recipe, version=1, failure=table)
    assert {reason for ledger in batch.ledgers for reason in ledger.left_out} <= REASONS.keys()
