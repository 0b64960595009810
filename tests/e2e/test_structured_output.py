"""Structured output and forced tools before the real engine: served as asked, and trained exactly."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from e2e.test_guided import line as line

from agentlightning.credit.assign import assign
from agentlightning.recipes import GRPO
from agentlightning.types import AttemptStatus, Reward, RolloutStatus
from agl_local.text.grammar import GrammarCompiler
from agl_local.training.update import Updater

SCHEMA = {
    "type": "object",
    "properties": {"vote": {"enum": ["5号", "弃票"]}, "sure": {"type": "boolean"}},
    "required": ["vote", "sure"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "vote", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "vote", "parameters": SCHEMA, "strict": True}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "vote", "schema": SCHEMA, "strict": True}}
ASKED: list[dict[str, Any]] = [
    {"response_format": FORMAT},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"json": SCHEMA}},
    {"guided_json": json.dumps(SCHEMA)},
    {"guided_regex": "(yes|no)/[0-9]{2}"},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "vote"}}},
    {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [TOOL], "parallel_tool_calls": False},
    {"tools": [STRICT], "response_format": FORMAT},
    {"response_format": FORMAT, "stream": True},
    {"response_format": FORMAT, "n": 2, "temperature": 0.3},
]


@pytest.mark.slow
async def test_constrained_calls_are_trained_with_the_masks_of_the_engine(line: SimpleNamespace) -> None:
    rollouts = []
    for sample in range(2):
        lease, key = await line.attempt(sample)
        for asked in ASKED:
            got = await line.ask(key, max_tokens=160, **asked)
            assert got.status == 200, got.raw
        rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        await line.store.update_attempt(rollout_id, attempt_id, AttemptStatus.SUCCEEDED)
        rollouts.append(rollout_id)
    records = await line.store.records(rollouts)
    for i, record in enumerate(records):
        record.rollout.status, record.rollout.group_id = RolloutStatus.SUCCEEDED, "g"
        record.rewards = [Reward(value=float(i))]
        assert [call.masked for call in record.calls] == [None] * (len(ASKED) + 1)
        for call in record.calls:
            assert call.grammar is not None and call.grammar.library == "llguidance"
            check_answer(call.request, call.response, call.finish_reason)
    batch = assign(records, GRPO(temperature=1.0), version=0)
    assert all(ledger.sums and ledger.trained == len(ASKED) + 1 for ledger in batch.ledgers)
    tokenizer, model = line.policy.tokenizer, line.policy.model
    grammars = GrammarCompiler(tokenizer, model.config.vocab_size)
    updater = Updater(model, GRPO(), eos_ids=tokenizer.eos_ids, grammars=grammars)
    metrics = updater.update(batch.rows, version=0)
    assert metrics["logprob_gap_tokens"] == metrics["tokens_trained"] > 0
    assert metrics["logprob_gap_max"] <= 1e-4


def check_answer(request: dict[str, Any], response: dict[str, Any], finish: str) -> None:
    """An answer that was not cut is what was asked for."""
    if finish == "length":
        return
    calls = response.get("tool_calls") or []
    for call in calls:
        assert call["function"]["name"] == "vote"
        if request.get("tool_choice") or request["tools"] == [STRICT]:
            check_vote(json.loads(call["function"]["arguments"]))
    if request.get("tool_choice"):
        assert calls and not response["content"]
        assert request.get("parallel_tool_calls") is not False or len(calls) == 1
    elif request.get("guided_regex"):
        assert response["content"][-3] == "/"
    elif request.get("response_format") == {"type": "json_object"}:
        assert isinstance(json.loads(response["content"]), dict)
    elif not request.get("tools"):
        check_vote(json.loads(response["content"]))


def check_vote(vote: dict[str, Any]) -> None:
    assert set(vote) == {"vote", "sure"} and vote["vote"] in ("5号", "弃票") and vote["sure"] in (True, False)
