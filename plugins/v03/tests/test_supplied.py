"""Returned transitions count before captured calls, are in the ledger, and their rewards reach the loss."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import openai
import pytest
from contract.model_server import ModelServer
from contract.running import finish, reason, rolled_out, serving
from core.runner.test_rewards import ran

from agentlightning import emit_reward, semconv
from agentlightning.capture.records import BadRecord
from agentlightning.credit import assign
from agentlightning.credit.rewards import resolve
from agentlightning.store import SQLiteStore, Store, codec
from agentlightning.types import (
    LLM,
    Batch,
    Call,
    Recipe,
    Record,
    Rollout,
    RolloutStatus,
    Span,
    Triplet,
)
from agentlightning.types.arrays import from_either
from agl_v03.supplied import read_supplied

PER_CALL = Recipe(name="t", credit="per_call", baseline="none")
Answers = list[Any]
"""What the openai SDK returned to the agent, in order."""


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
async def engine() -> AsyncIterator[ModelServer]:
    async with ModelServer(lambda body: body["messages"][-1]["content"][::-1]) as server:
        yield server


async def run(store: Store, engine: ModelServer, supply: Any) -> tuple[Rollout, Record]:
    """One rollout of an agent that makes two calls and returns ``supply(answers)``."""

    async def agent(task: Any, llm: LLM) -> Any:
        answers = []
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
            for text in ("first question", "another one"):
                messages: Any = [{"role": "user", "content": text}]
                answers.append(
                    await client.chat.completions.create(model="policy", messages=messages, temperature=1.0)
                )
        return supply(answers)

    rollout, record, _ = await rolled_out(agent, 1, store, engine, version=lambda: 4)
    return rollout, record


def own(response: list[int], reward: float | None, **fields: Any) -> Triplet:
    return Triplet(
        prompt_ids=[7, 8], response_ids=response, logprobs=[-0.5] * len(response), reward=reward, **fields
    )


def advantages(batch: Batch) -> dict[str, float]:
    return {s.call_id: s.advantage for row in batch.rows for s in row.segments if s.trained}


def emitted(answers: Answers) -> None:
    emit_reward(1.0, call=answers[0])
    emit_reward(-1.0, call=answers[1])


def refined(answers: Answers) -> list[Triplet]:
    return [
        Triplet(prompt_ids=[], response_ids=[], reward=r, call_id=a.id)
        for r, a in zip((1.0, -1.0), answers, strict=True)
    ]


def supplied(answers: Answers) -> list[Triplet]:
    return [own([3, 4], 1.0), own([5, 6], -1.0)]


async def test_what_no_triplet_names_is_replaced_and_ledgered(store: Store, engine: ModelServer) -> None:
    _, record = await run(store, engine, supplied)
    assert [c.api for c in record.calls] == ["chat", "chat", "supplied", "supplied"]  # nothing is overwritten
    [ledger] = assign([record], PER_CALL).ledgers
    assert (ledger.made, ledger.trained, ledger.left_out) == (4, 2, {"replaced-by-agent": 2})
    assert ledger.verdicts == {"exact": 2, "supplied": 2} and ledger.sums
    assert {c.policy for c in record.calls} == {"policy"}  # where all recorded calls went
    _, record = await run(store, engine, lambda answers: refined(answers)[1:])
    [ledger] = assign([record], PER_CALL).ledgers
    assert (ledger.trained, ledger.left_out) == (1, {"replaced-by-agent": 1})
    for rule in ("last", "discounted"):  # a replaced call is no step of what the agent did
        recipe = Recipe(name="t", credit=rule, baseline="none")
        [ledger] = assign([record], recipe).ledgers
        assert ledger.left_out["replaced-by-agent"] == 1


async def test_the_agents_word_is_the_last(store: Store, engine: ModelServer) -> None:
    def both(answers: Answers) -> list[Triplet]:
        emit_reward(-1.0, call=answers[0])
        return refined(answers)

    _, record = await run(store, engine, both)
    assert sorted(advantages(assign([record], PER_CALL)).values()) == [-1.0, 1.0]


async def test_fields_of_a_call_come_from_the_triplet(store: Store, engine: ModelServer) -> None:
    metadata = {
        "policy": "policy",
        "policy_version": 3,
        "model": "m",
        "sampling": {"temperature": 0.5},
        "x": [1],
    }

    def supply(answers: Answers) -> list[Any]:
        ids = np.array([3, 4])
        first = Triplet(
            prompt_ids=ids, response_ids=ids, logprobs=np.array([-0.5, -0.25]), reward=np.float32(0.5),
            tags={"agent": "judge"}, metadata=metadata,
        )  # fmt: skip
        return [first, own([5], None, tags={"agent": "b"}), Triplet(prompt_ids=[1], response_ids=[2])]

    _, record = await run(store, engine, supply)
    first, second, third = [c for c in record.calls if c.api == "supplied"]
    assert (first.policy, first.policy_version, first.model) == ("policy", 3, "m")
    assert first.sampling == {"temperature": 0.5} and first.tags == {"agent": "judge"}
    assert first.request == {"metadata": {"x": [1]}} and first.logprobs == [-0.5, -0.25]
    assert [c.sequence for c in (first, second, third)] == [2, 3, 4]
    ledger = assign([record], PER_CALL).ledgers[0]
    assert ledger.left_out == {"replaced-by-agent": 2, "no-reward": 1, "no-logprobs": 1}


async def test_a_span_with_ids_is_a_transition(store: Store, engine: ModelServer) -> None:
    def packed(data: bytes | None) -> str:
        return base64.b64encode(data or b"").decode()

    attributes = {
        semconv.PROMPT_IDS: packed(codec.pack_ids([1, 2])),
        semconv.RESPONSE_IDS: packed(codec.pack_ids([3])),
        semconv.LOGPROBS: packed(codec.pack_floats([-0.5])),
        semconv.TAG_PREFIX + "agent": "a",
        "note": "kept",
    }
    span = Span(rollout_id="", attempt_id="", name="my call", attributes=attributes)
    rollout, record = await run(store, engine, lambda answers: [span, own([5], 1.0)])
    first, second = [c for c in record.calls if c.api == "supplied"]
    assert (first.prompt_ids, first.response_ids, first.logprobs) == ([1, 2], [3], [-0.5])
    assert first.tags == {"agent": "a"} and second.response_ids == [5]
    [kept] = await store.spans(rollout.rollout_id, name="my call")
    assert semconv.PROMPT_IDS not in kept.attributes and kept.attributes["note"] == "kept"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response_ids": [9]}, "response_ids differ at 0"),
        ({"prompt_ids": [9]}, "prompt_ids differ at "),
        ({"logprobs": [-9.0]}, "logprobs differ at 0"),
        ({"tags": {"agent": "x"}}, "tag 'agent' is None, not 'x'"),
        ({"call_id": "nobody"}, "names no recorded call of the attempt"),
        ({"twice": True}, "names a call that an earlier triplet named"),
    ],
)
async def test_a_conflict_with_what_was_recorded_is_refused_and_counted(
    store: Store, engine: ModelServer, change: dict[str, Any], message: str
) -> None:
    def supply(answers: Answers) -> list[Triplet]:
        extra: dict[str, Any] = answers[0].model_extra
        choice: dict[str, Any] = answers[0].choices[0].model_extra
        ids = {"prompt_ids": extra["prompt_token_ids"], "response_ids": choice["token_ids"]}
        asked = {k: v for k, v in change.items() if k != "twice"}
        if "logprobs" in asked:
            asked["logprobs"] *= len(ids["response_ids"])
        good = Triplet(**{**ids, "call_id": answers[0].id, "reward": 1.0, **asked})
        return [own([3], 1.0), good] + [good] * ("twice" in change)

    rollout, record = await run(store, engine, supply)
    told = await reason(store, rollout)
    assert told.startswith("bad-record: triplet ") and message in told
    assert record.rewards == [] and {c.api for c in record.calls} == {"chat"}  # nothing half stored
    assert (await store.counts())["refused"] == {"supplied-conflict": 1}


GOOD = {"prompt_ids": [1], "response_ids": [2, 3], "logprobs": [-1.0, -1.0], "reward": 1.0}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"prompt_ids": [-1]}, "bad-record", "prompt_ids[0] is -1: token ids are integers from 0"),
        ({"response_ids": [2, 2**31]}, "bad-record", "response_ids[1] is 2147483648"),
        ({"response_ids": [2, 3.5]}, "bad-record", "response_ids[1] is 3.5"),
        ({"response_ids": [2, True]}, "bad-record", "response_ids[1] is True"),
        ({"prompt_ids": "abc"}, "bad-record", "prompt_ids is a str, not a list"),
        ({"response_ids": [], "logprobs": None}, "bad-record", "response_ids is empty"),
        ({"logprobs": [-1.0]}, "bad-record", "logprobs has 1 values for 2 response ids"),
        ({"logprobs": [-1.0, math.nan]}, "bad-record", "logprobs[1] is nan"),
        (
            {"logprobs": [-1.0, 0.5]},
            "bad-record",
            "logprobs[1] is 0.5: a logprob is a finite number, at most 0",
        ),
        ({"reward": math.nan}, "bad-reward", "reward is nan, not a finite number"),
        ({"reward": "1"}, "bad-reward", "reward is '1'"),
        ({"tags": {"agent": 1}}, "bad-record", "tags is {'agent': 1}"),
        ({"call_id": 5}, "bad-record", "call_id is 5"),
        ({"metadata": {"policy_version": "3"}}, "bad-record", "metadata['policy_version'] is '3'"),
        ({"metadata": {"sampling": {"temperature": math.inf}}}, "bad-record", "['temperature'] is inf"),
        ({"metadata": {"x": object()}}, "bad-record", "metadata has no valid JSON form"),
        ({"metadata": None}, "bad-record", "metadata is a NoneType"),
    ],
)
async def test_what_is_no_transition_names_item_and_field(
    store: Store, change: dict[str, Any], kind: str, message: str
) -> None:
    async def agent(task: Any) -> Any:
        return [Triplet(**GOOD), Triplet(**{**GOOD, **change})]

    async with serving(agent, store):
        [rollout] = await finish(store, [1])
    told = await reason(store, rollout)
    assert told.startswith(f"{kind}: item 1: ") and message in told
    [record] = await store.records([rollout.rollout_id])
    assert record.calls == [] and record.rewards == []


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("junk", "bad-record: item 1 is a str, not a Triplet or a Span"),
        (1.0, "bad-record: item 1 is a float"),
        (
            Span(rollout_id="", attempt_id="other", name="n"),
            "item 1: its attempt_id is 'other', the attempt's is",
        ),
        (
            Span(
                rollout_id="",
                attempt_id="",
                name=semconv.REWARD_SPAN,
                attributes={semconv.REWARD_VALUE: math.nan},
            ),
            "bad-reward: item 1: attribute agl.reward.value is nan",
        ),
        (Span(rollout_id="", attempt_id="", name="n", attributes={"x": object()}), "no valid JSON form"),
        (Span(rollout_id="", attempt_id="", name=5), "the span's name is 5"),  # type: ignore[arg-type]
    ],
)
def test_what_is_neither_is_refused(item: Any, message: str) -> None:
    with pytest.raises(BadRecord) as refused:
        read_supplied([Triplet(**GOOD), item], "r", "a")
    assert message in refused.value.reason


@pytest.mark.parametrize("result", [1.0, None, [], [1.0], "text", {"reward": 1}])
def test_other_results_are_not_read_as_records(result: Any) -> None:
    assert read_supplied(result, "r", "a") is None


def test_a_supplied_call_survives_the_store() -> None:
    call = Call(call_id="c", rollout_id="r", attempt_id="a", api="supplied", prompt_ids=[1], response_ids=[2])
    assert msgspec.convert(call.model_dump(), Call, dec_hook=from_either) == call


def returns_a_span(task: Any) -> list[Span]:
    emit_reward(0.3)
    return [
        Span(rollout_id="", attempt_id="", name=semconv.REWARD_SPAN, attributes={semconv.REWARD_VALUE: 1.0})
    ]


def returns_a_transition(task: Any) -> list[Triplet]:
    return [Triplet(prompt_ids=[1], response_ids=[2], reward=1.0)]


async def test_transitions_of_an_agent_without_trust_are_refused(store: Store) -> None:
    record = await ran(store, returns_a_transition, trusted=False, max_attempts=1)
    assert record.rollout.status == "failed" and not record.calls
    assert "agent.trusted" in (record.rollout.reason or "")


async def test_returned_spans_are_returned_rewards(store: Store) -> None:
    assert resolve(await ran(store, returns_a_span)).final == 1.0


async def test_rewards_of_returned_transitions_are_returned(store: Store) -> None:
    def agent(task: Any) -> list[Triplet]:
        return [Triplet(prompt_ids=[1], response_ids=[2], logprobs=[-0.5], reward=0.5)]

    record = await ran(store, agent)
    assert [(r.value, r.returned, r.call_id) for r in record.rewards] == [
        (0.5, True, record.calls[0].call_id)
    ]


async def supply_in_a_worker(task: Any) -> list[Triplet]:
    return [Triplet(prompt_ids=[1, 2], response_ids=[3], logprobs=[-0.5], reward=1.0)]


@pytest.mark.slow
async def test_supplied_transitions_come_back_over_the_pipe(store: Store) -> None:
    async with serving(supply_in_a_worker, store, concurrency=1, isolation="process"):
        [rollout] = await finish(store, [1])
    [record] = await store.records([rollout.rollout_id])
    assert record.rollout.reason is None, record.rollout.reason
    [call] = record.calls
    assert (call.api, call.prompt_ids, call.response_ids) == ("supplied", [1, 2], [3])
    assert [(r.value, r.call_id) for r in record.rewards] == [(1.0, call.call_id)]


async def test_spans_that_cannot_be_stored_fail_their_attempt_not_the_runner(store: Store) -> None:
    async def agent(task: int) -> Any:
        return [Span(rollout_id="another", attempt_id="another", name="n")] if task else 1.0

    async with serving(agent, store):
        bad, good = await finish(store, [1, 0])
    assert (await reason(store, bad)).startswith("bad-record: ")
    assert good.status == RolloutStatus.SUCCEEDED
