"""The graph over HTTP: one call, guided by the names on offer, then a look into the chosen database."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("langgraph", reason="the agent is a LangGraph graph")
pytest.importorskip("langchain_openai")

from agl_testing import Reply, ScriptedModelServer
from openai import BadRequestError

from router.agent import ANSWER_TOKENS, agent, ask
from router.datasets import load
from router.headroom import oracle
from router.prompts import to_route

TASKS = load("dev", limit=8)
QUESTION, NAMES = "How many singers do we have?", ["car_1", "concert_singer"]


def at(server: ScriptedModelServer) -> Any:
    return SimpleNamespace(endpoint=server.url, api_key="k", model="tiny")


async def test_the_model_chooses_among_the_names_and_code_answers() -> None:
    async with ScriptedModelServer(lambda body: "concert_singer") as server:
        state = await ask(QUESTION, NAMES, at(server))
    (exchange,) = server.log
    assert exchange.body["messages"] == to_route(QUESTION, NAMES)
    assert exchange.body["guided_choice"] == NAMES
    assert exchange.body["max_completion_tokens"] == ANSWER_TOKENS
    assert state["chosen"] == "concert_singer" and state["answer"].text == "1 row: count(*)\n6"


async def test_runs_at_once_share_nothing() -> None:
    async with ScriptedModelServer(oracle(TASKS)) as server:
        assert await asyncio.gather(*(agent(task, at(server)) for task in TASKS)) == [1.0] * len(TASKS)
    assert len(server.log) == len(TASKS)


async def test_a_wrong_database_earns_nothing() -> None:
    task = TASKS[0]
    wrong = next(name for name in task["databases"] if name != task["answer"])
    async with ScriptedModelServer(lambda body: wrong) as server:
        assert await agent(task, at(server)) == 0.0


@pytest.mark.parametrize("said", ["network_2", "../../etc/passwd", "", "I would say concert_singer"])
async def test_a_name_that_was_not_on_offer_is_not_opened(said: str) -> None:
    async with ScriptedModelServer(lambda body: said) as server:
        state = await ask(QUESTION, NAMES, at(server))
    assert state["chosen"] == said and "answer" not in state


async def test_a_failing_call_ends_the_run() -> None:
    async with ScriptedModelServer(lambda body: Reply(status=400, message="no")) as server:
        with pytest.raises(BadRequestError):
            await agent(TASKS[0], at(server))
