"""Who is trained: a program of two agents, one of them chosen, and what becomes of the other's calls."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

import agentlightning as agl
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.plugins.manager import build
from agentlightning.types.select import Select

POLICY = Path(__file__).parents[2] / "examples" / "calc_x" / "policy"
TASKS = [{"id": i, "question": "Ida has 20 coins."} for i in range(4)]


def trainer(folder: Path, **options: Any) -> agl.Trainer:
    import agl_local.plugin

    defaults: dict[str, Any] = dict(
        algorithm=agl.RLOO(group_size=2),
        policy=POLICY,
        options={"engine": "thread", "threads": 1, "max_len": 256},
        steps=1,
        batch_size=1,
        output=folder,
        trackers=["files"],
        plugins=build([agl_local.plugin], discover=False),
    )
    return agl.Trainer(**{**defaults, **options})


async def ask(question: str) -> str:
    """Ask the model of the present rollout."""
    llm = agl.current_attempt().llm  # type: ignore[union-attr]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        messages: list[Any] = [{"role": "user", "content": question}]
        answer = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=4)
    return answer.choices[0].message.content or ""


@agl.agent(name="critic")
class Critic:
    """An agent of somebody else's: it is called as a tool."""

    async def run(self, text: str) -> str:
        return await ask(f"Is this right? {text[:20]}")


def writer(**marks: Any) -> Any:
    @agl.agent(name="writer", **marks)
    class Writer:
        async def run(self, task: dict[str, Any]) -> str:
            draft = await ask(task["question"])
            return draft + await Critic().run(draft)

    return Writer


async def trained(folder: Path, agent: Any, **options: Any) -> tuple[dict[str, Any], list[agl.Record]]:
    """One step; its summary and the records of its rollouts."""
    made = trainer(folder, **options)
    summary = await made.afit(agent, TASKS)
    store = agl.open_store(made.config.output / summary["run_id"] / "store.sqlite")
    try:
        rollouts = await store.query_rollouts(run_id=summary["run_id"])
        return summary, await store.records([rollout.rollout_id for rollout in rollouts])
    finally:
        await store.close()


def selected(records: list[agl.Record]) -> Counter[tuple[str, bool]]:
    return Counter((call.tags["agent"], call.selected) for record in records for call in record.calls)


@pytest.mark.parametrize(
    ("marks", "select"),
    [
        ({}, "writer"),
        ({}, "re:wri.*"),
        ({}, lambda tags: tags["role"] == "writer"),
        ({"select": "writer"}, None),
        ({"select": lambda tags: tags["agent"] != "critic"}, None),
        ({"select": True}, ["writer", "reader"]),
    ],
)
async def test_one_of_two_agents_is_trained_and_the_others_calls_are_in_the_ledger(
    tmp_path: Path, marks: dict[str, Any], select: Select
) -> None:
    agent = writer(reward=len, **marks)
    summary, records = await trained(tmp_path, agent, select=select)
    assert selected(records) == {("writer", True): 2, ("critic", False): 2}
    assert [record.rewards[-1].final for record in records] == [True, True]
    (step,) = (tmp_path / summary["run_id"] / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(step)["metrics"]
    reason = (
        "not-selected-by-agent" if select is None else "not-selected"
    )  # who said so: its own code, or the run
    assert (metrics["calls"], metrics[f"left_out/{reason}"]) == (4, 2)
    assert metrics["calls_trained"] + metrics.get("left_out/zero-std", 0) == 2
    assert metrics["rollouts_failed"] == 0


@pytest.mark.slow
async def test_a_class_that_returns_text_is_trained_by_its_reward_function(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def score(task: dict[str, Any], result: str, agent: Any) -> float:
        seen.append((task["id"], type(agent).__name__))
        return len(result) % 3

    _, records = await trained(tmp_path, writer(reward=score))
    assert len(records) == len(seen) == 2 and {name for _, name in seen} == {"Writer"}
    for record in records:
        assert record.rollout.status == "succeeded"
        (reward,) = record.rewards
        assert reward.final and reward.agent is None and reward.value in (0.0, 1.0, 2.0)


@pytest.mark.slow
async def test_a_reward_inside_another_agent_is_of_its_own_calls(tmp_path: Path) -> None:
    inner = writer(reward=lambda result: 0.5)

    async def solve(task: dict[str, Any]) -> float:
        await inner().run(task)
        return 1.0

    _, records = await trained(tmp_path, solve)
    for record in records:
        calls = {call.span_id: call.tags["agent"] for call in record.calls}
        assert sorted(calls.values()) == ["critic", "writer"]
        own = [reward for reward in record.rewards if reward.span_id]
        assert [(calls[reward.span_id], reward.value) for reward in own] == [("writer", 0.5)]
        assert [r.value for r in record.rewards if r.agent == "writer" and not r.span_id] == [0.5]
        assert [r.value for r in record.rewards if r.final] == [1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reward", "kind", "said"),
    [
        (lambda result: 1 / 0, "agent-raised", "of agent 'writer' raised ZeroDivisionError"),
        (lambda result: float("nan"), "bad-reward", "of agent 'writer' returned nan (float)"),
        (lambda result: result, "bad-reward", "of agent 'writer' returned "),
    ],
)
@pytest.mark.parametrize("place", ["root", "inside", "swallowed"])
async def test_a_reward_function_that_fails_fails_the_attempt(
    tmp_path: Path, reward: Any, kind: str, said: str, place: str
) -> None:
    inner = writer(reward=reward)

    async def solve(task: dict[str, Any]) -> float:
        try:
            await inner().run(task)
        except agl.UsageError:
            if place == "inside":
                raise
        return 1.0

    async with trainer(tmp_path).session(inner if place == "root" else solve) as context:
        with pytest.raises(NothingRewarded):
            await context.evaluate(TASKS[:1], name="x")
        (rollout,) = await context.store.query_rollouts(run_id=context.run_id)
        (record,) = await context.store.records([rollout.rollout_id])
    assert rollout.status == "failed" and record.attempt is not None
    reason = record.attempt.reason or ""
    assert reason.startswith(f"{kind}: ") and said in reason


@pytest.mark.slow
async def test_a_reward_that_is_none_is_missing(tmp_path: Path) -> None:
    async with trainer(tmp_path).session(writer(reward=lambda result: None)) as context:
        with pytest.raises(NothingRewarded):
            await context.evaluate(TASKS[:1], name="x")
        (rollout,) = await context.store.query_rollouts(run_id=context.run_id)
        (record,) = await context.store.records([rollout.rollout_id])
    assert rollout.status == "succeeded" and record.rewards == []


@pytest.mark.slow
async def test_whom_nobody_named_is_unknown_said_once_and_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def solve(task: dict[str, Any]) -> float:
        return float(len(await ask(task["question"])) % 2)

    with caplog.at_level(logging.WARNING, logger="agentlightning.gateway.metrics"):
        summary, records = await trained(tmp_path, solve, select="unknown")
    calls = [call for record in records for call in record.calls]
    assert [(call.tags, call.selected) for call in calls] == [({"role": "unknown"}, True)] * 2
    (warning,) = [r for r in caplog.records if "has no agent's name" in r.getMessage()]
    assert "@agl.agent" in warning.getMessage() and "adapter" in warning.getMessage()
    assert summary["accounts"] == {}, "where nobody has a name there is nobody to tell apart"
    assert summary["totals"]["calls_exact"] == 2


def sync_ask(task: dict[str, Any], llm: agl.LLM) -> str:
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    with client:
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        return client.chat.completions.create(model=llm.model, messages=messages, max_tokens=4).id


@pytest.mark.slow
async def test_a_plain_class_in_a_thread(tmp_path: Path) -> None:
    @agl.agent(select="re:pla.*", reward=lambda result, task: task["id"])
    class Plain:
        def run(self, task: dict[str, Any], llm: agl.LLM) -> str:
            return sync_ask(task, llm)

    _, records = await trained(tmp_path, Plain, select=lambda tags: tags["agent"] == "Plain")
    assert selected(records) == {("Plain", False): 2}
