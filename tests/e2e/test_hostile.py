"""Whatever agents hand over: the run finishes, every call is accounted for, and the honest are trained."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from e2e.bad import Line, soon
from e2e.hostile import Deed, ask, play, program
from hypothesis import HealthCheck, given, settings, strategies as st
from marks import examples

import agentlightning as agl
from agentlightning import LLM, semconv
from agentlightning.capture.context import current_attempt
from agentlightning.store import SQLiteStore
from agentlightning.types import Span
from agl_v03.triplet import Triplet

Program = tuple[list[Deed], Deed, bool]
HONEST = 2
"""Rollouts of each run that do nothing wrong, so that there is something to train."""


async def train(folder: Path, agent: Any, tasks: list[Any], **options: Any) -> tuple[Line, dict[str, Any]]:
    """One step over the tasks; every call that the gateway recorded is in a ledger."""
    async with ScriptedModelServer() as server:
        line = Line(server, folder, batch_size=len(tasks), max_attempts=1, **options)
        result = await soon(line.fit(agent, tasks), 60)
        recorded = sum(line.context.gateway.metrics.calls.values())
    ledgers = [ledger for batch in line.driver.batches for ledger in batch.ledgers]
    assert len(line.records) == len(ledgers) == len(tasks) and all(ledger.sums for ledger in ledgers)
    handed_in = sum(call.api == "supplied" for record in line.records for call in record.calls)
    assert sum(ledger.recorded for ledger in ledgers) == recorded + handed_in
    assert line.context.gateway.metrics.lost_records == 0
    return line, result


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(programs=st.lists(program, min_size=20, max_size=20))
def test_no_agent_ends_the_run(programs: list[Program], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ten runs of twenty hostile rollouts."""

    async def agent(task: int, llm: LLM) -> Any:
        if task < len(programs):
            return await play(llm, *programs[task])
        await ask(llm, {})
        return 1.0

    tasks = list(range(len(programs) + HONEST))
    line, result = asyncio.run(train(tmp_path_factory.mktemp("hostile"), agent, tasks))
    assert result["totals"]["rollouts"] == len(tasks)
    assert {len(programs), len(programs) + 1} <= line.trained
    json.dumps(result["accounts"])


async def wire_span_with_an_odd_choice(llm: LLM) -> float:
    context = current_attempt()
    assert context is not None
    given = {semconv.LAYER: "wire", semconv.CHOICE: "abc", semconv.RESPONSE_ID: "srv-1"}
    owner = {"rollout_id": context.rollout_id, "attempt_id": context.attempt_id}
    context.sink(Span(**owner, name=semconv.CALL_SPAN, span_id="s", attributes=given))
    return 1.0


async def reward_of_a_list_of_agents(llm: LLM) -> None:
    agl.emit_reward(1.0, agent=["a", "b"])  # type: ignore[arg-type]


def supplied(**fields: Any) -> Any:
    async def vice(llm: LLM) -> list[Triplet]:
        good = {"prompt_ids": [1], "response_ids": [2], "logprobs": [-0.5], "reward": 1.0}
        return [Triplet(**{**good, **fields})]

    return vice


ENDED_RUNS = {
    "a list of agents": (reward_of_a_list_of_agents, "bad-record: .*agl.reward.agent is .'a', 'b'"),
    "an odd choice": (wire_span_with_an_odd_choice, None),
    "an id outside": (supplied(response_ids=[5000]), "bad-record: .*5000, outside the vocabulary of policy"),
    "a prompt outside": (supplied(prompt_ids=[4096]), "bad-record: .*4096, outside the vocabulary"),
    "too many ids": (supplied(prompt_ids=[1] * 64), "bad-record: .*are 65 tokens; policy 'policy' takes 64"),
    "an unknown policy": (
        supplied(metadata={"policy": "other"}),
        "bad-record: .*'other', which is not served",
    ),
    "a huge version": (supplied(metadata={"policy_version": 10**30}), "bad-record: .*policy_version"),
    "a huge reward": (supplied(reward=1e308), "bad-reward: .*1e[+]308: a reward lies between"),
    "a huge return": (lambda llm: _give(1e308), "bad-reward: .*1e[+]308"),
}
"""What ended a run, or its evaluation, once → why its rollout failed; ``None``: it did not."""


async def _give(value: Any) -> Any:
    return value


async def test_what_once_ended_a_run_is_that_rollouts_end_and_nobody_elses(tmp_path: Path) -> None:
    async def agent(task: str, llm: LLM) -> Any:
        await ask(llm, {})
        return await ENDED_RUNS[task][0](llm) if task in ENDED_RUNS else 1.0

    (tmp_path / "config.json").write_text('{"vocab_size": 4096, "max_position_embeddings": 64}')
    line, result = await train(tmp_path, agent, [*ENDED_RUNS, "honest"])
    reasons = line.reasons()
    for name, (_, why) in ENDED_RUNS.items():
        assert why is None or re.match(
            why.replace("[", "\\[").replace("\\[+]", "[+]"), reasons[name] or ""
        ), name
    assert line.trained == {"honest", "an odd choice"}
    assert result["accounts"]["capture"]["bad-record"] == 2
    odd = line.by_task()["an odd choice"].rollout.rollout_id
    store = SQLiteStore(tmp_path / "r" / "store.sqlite")
    kept = await store.query_spans(odd, name=semconv.BAD_RECORD_SPAN)
    await store.close()
    assert [span.attributes[semconv.BAD_RECORD_REASON] for span in kept] == [
        "attribute agl.choice is 'abc': Expected `int`, got `str`"
    ]


@pytest.mark.slow
async def test_an_engine_that_speaks_another_vocabulary_is_recorded_and_not_trained(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')

    async def agent(task: int, llm: LLM) -> float:
        await ask(llm, {})
        return 1.0

    line, _ = await train(tmp_path, agent, [1, 2])
    assert line.out() == {"outside-vocabulary": 2} and not line.trained
    assert {call.masked for record in line.records for call in record.calls} == {"outside-vocabulary"}
