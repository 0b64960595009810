"""Which calls can be trained, and the one reason of each that cannot."""

from __future__ import annotations

import math

import pytest
from core.credit.builders import make_record, make_wire, one_call

from agentlightning import semconv
from agentlightning.credit import assign
from agentlightning.credit.accounts import agents_word
from agentlightning.credit.eligibility import live_record, untrainable_reasons
from agentlightning.credit.verdicts import verdicts
from agentlightning.recipes import GRPO
from agentlightning.types import Reward, Span


def reasons(*calls, max_staleness=0, version=None, wire: list[Span] | None = None, trusted=True):
    record = make_record(calls=list(calls), wire=wire)
    record.rollout.config.trusted = trusted
    recipe = GRPO(max_staleness=max_staleness)
    return untrainable_reasons(record, verdicts(record), recipe, version=version)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": "error"}, "error"),
        ({"status": "cancelled"}, "cancelled"),
        ({"selected": False}, "not-selected"),
        ({"masked": "off-policy-sampling"}, "off-policy-sampling"),
        ({"masked": "over-length"}, "over-length"),
        ({"status": "error", "masked": "over-length"}, "over-length"),
        ({"prompt_ids": None}, "no-ids"),
        ({"response_ids": None}, "no-ids"),
        ({"response_ids": [], "logprobs": [], "completion_tokens": 0}, "empty-response"),
        ({"prompt_tokens": 9}, "mismatch"),
        ({"logprobs": None}, "no-logprobs"),
        ({"logprobs": [-1.0, -math.inf]}, "bad-logprobs"),
        ({"logprobs": [-1.0, math.nan]}, "bad-logprobs"),
        ({"sampling": {"temperature": 0}}, "off-policy-sampling"),
        ({"attempt_id": "an-older-one"}, "other-attempt"),
    ],
)
def test_reasons(fields, reason):
    call = one_call()
    for name, value in fields.items():
        setattr(call, name, value)
    assert reasons(call) == {call.call_id: reason}


def test_a_sound_call_has_none():
    assert reasons(one_call()) == {}


def test_a_wire_layer_that_saw_other_ids():
    call = one_call(response_id="x")
    wire = [make_wire(call, **{semconv.TOKENS_DIGEST: "0"})]
    assert reasons(call, wire=wire) == {"r0-c0": "mismatch-by-agent"}
    assert reasons(call, wire=wire, trusted=False) == {}


def test_an_agent_without_trust_takes_no_answered_call_out():
    """By other tags, by a header that asks not to be trained, or by a retry of what was answered."""
    tagged = one_call(response_id="x", tags={"agent": "A"})
    assert reasons(tagged, wire=[make_wire(tagged, **{"agl.tag.agent": "B"})], trusted=False) == {}
    tries = [one_call(sequence=i, span_id="s", trace_id="t", retry=i) for i in range(2)]
    assert reasons(*tries, trusted=False) == {}
    tries[0].status = "error"
    assert reasons(*tries, trusted=False) == {"r0-c0": "superseded"}


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_trusted_agents_own_record_replaces_what_the_gateway_recorded(trusted):
    """A runner beside an agent that is not trusted hands in none; the agent may have that runner's token."""
    record = make_record(calls=[one_call()], rewards=[Reward(value=1.0)])
    record.rollout.config.trusted = trusted
    assert record.attempt is not None
    record.attempt.metadata = {semconv.SUPPLIED: []}
    [ledger] = assign([record], GRPO(), version=0).ledgers
    assert ledger.left_out == ({"replaced-by-agent": 1} if trusted else {})
    assert ledger.disputed == (0 if trusted else 1)


def test_what_contradicts_itself_is_out_whoever_the_agent_is():
    call = one_call()
    call.prompt_tokens = 9
    assert reasons(call, trusted=False) == {"r0-c0": "mismatch"}


def test_what_an_agent_asked_not_to_be_trained_has_a_reason_of_its_own():
    call = one_call(selected=False, asked={"selected": False})
    assert reasons(call) == {"r0-c0": "not-selected-by-agent"}


@pytest.mark.parametrize("trusted", [True, False])
def test_disputed_calls_are_counted_and_told(trusted):
    calls = [one_call(sequence=i, response_id=f"x{i}") for i in range(3)]
    record = make_record(
        calls=calls, reward=1.0, wire=[make_wire(one, **{semconv.TOKENS_DIGEST: "0"}) for one in calls[:2]]
    )
    record.rollout.config.trusted = trusted
    batch = assign([record], GRPO())
    (ledger,) = batch.ledgers
    assert ledger.sums and ledger.disputed == 2 == batch.metrics["calls_disputed"]
    assert ledger.trained == (1 if trusted else 3)
    assert ledger.left_out == ({"mismatch-by-agent": 2} if trusted else {})
    said = agents_word(batch.metrics)
    assert said.startswith("WARNING: 2 calls are " + ("left out" if trusted else "trained"))


def test_a_later_retry_supersedes():
    tries = [one_call(sequence=i, span_id="s", trace_id="t", retry=i) for i in range(3)]
    assert reasons(*tries) == {"r0-c0": "superseded", "r0-c1": "superseded"}


def test_no_span_id_other_spans_and_other_traces_supersede_nothing():
    calls = [
        one_call(sequence=0, retry=0),
        one_call(sequence=1, retry=1),
        one_call(sequence=2, span_id="s", trace_id="t", retry=0),
        one_call(sequence=3, span_id="s2", trace_id="t", retry=1),
        one_call(sequence=4, span_id="s", trace_id="t2", retry=1),
    ]
    assert reasons(*calls) == {}


@pytest.mark.parametrize(("staleness", "stale"), [(0, ["r0-c0", "r0-c1"]), (1, ["r0-c0"]), (2, [])])
def test_staleness_is_counted_in_versions(staleness, stale):
    calls = [one_call(sequence=i, policy_version=3 + i) for i in range(3)]
    assert reasons(*calls, max_staleness=staleness, version=5) == dict.fromkeys(stale, "stale")
    assert reasons(*calls, max_staleness=staleness, version=None) == {}


def test_a_call_without_a_version_is_not_judged_by_age():
    assert reasons(one_call(policy_version=None), version=5) == {}


def test_a_rule_sees_live_calls_in_order_with_their_reasons():
    calls = [
        one_call(sequence=3),
        one_call(sequence=2, selected=False),
        one_call(sequence=1, status="error"),
        one_call(sequence=0, span_id="s"),
        one_call(sequence=4, span_id="s", retry=1),
    ]
    seen = live_record(make_record(calls=calls), reasons(*calls)).calls
    assert [(c.call_id, c.masked) for c in seen] == [
        ("r0-c2", "not-selected"),
        ("r0-c3", None),
        ("r0-c4", None),
    ]
    assert calls[1].masked is None  # the record itself is untouched
