"""A reward function over stored rollouts gets the answers as the gateway stored them, of any API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from agl_testing import ScriptedModelServer
from contract.runs import calls_of
from e2e.bad import Line

import agentlightning as agl
from agentlightning import LLM
from agentlightning.store import SQLiteStore
from agl_audit.history.rescoring.function import RescoreFunction
from agl_audit.history.rescoring.rescore import read_trace, rescore
from agl_audit.locations import RunLocation
from agl_audit.run import run_in

CALCULATE = {"id": "t", "type": "function", "function": {"name": "calculate", "arguments": '{"e": "2+3"}'}}
TASKS = ["chat", "stream", "completions", "responses", "tool"]


def reply(body: dict[str, Any]) -> Any:
    """Odd questions are answered."""
    asked = str(body.get("messages") or body.get("prompt"))
    if "tool" in asked:
        return {"role": "assistant", "content": None, "tool_calls": [CALCULATE]}
    return "ANSWER 5" if "chat" in asked or "completions" in asked or "responses" in asked else "no idea"


async def agent(task: str, llm: LLM) -> float:
    """Ask the model by the API that the task names; the reward is the one that ``graded`` gives too."""
    http = httpx.AsyncClient(verify=False)
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, http_client=http) as client:
        if task == "completions":
            text = (await client.completions.create(model=llm.model, prompt=task)).choices[0].text
        elif task == "responses":
            text = (await client.responses.create(model=llm.model, input=task)).output_text
        else:
            messages: Any = [{"role": "user", "content": task}]
            given: Any = {"model": llm.model, "messages": messages, "stream": task == "stream"}
            answer: Any = await client.chat.completions.create(**given)
            if task == "stream":
                pieces = [piece async for piece in answer if piece.choices]
                text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
            else:
                text = answer.choices[0].message.content or ""
    return float("ANSWER" in text)


def graded(result: Any) -> float:
    """A reward function as people write it."""
    return float("ANSWER" in result.answer)


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    """The store of a run whose calls a real gateway recorded."""
    async with ScriptedModelServer(reply) as server:
        made = Line(server, tmp_path, steps=1, batch_size=len(TASKS))
        await made.fit(agl.rollout(agent), TASKS)
    store = SQLiteStore(tmp_path / "r" / "store.sqlite")
    yield store
    await store.close()


@pytest.mark.slow
async def test_the_function_gets_the_text_that_the_agent_got(store: SQLiteStore, tmp_path: Path) -> None:
    run = await run_in(store, RunLocation("", tmp_path / "r", "r"))
    found = await rescore(run, RescoreFunction("e2e.test_rescored:graded"), dry_run=True)
    assert found.scored == len(TASKS) and found.changed == 0
    assert found.before == found.after and sorted(found.after) == [0.0, 0.0, 1.0, 1.0, 1.0]


@pytest.mark.slow
async def test_an_answer_is_a_chat_completion_of_one_choice(store: SQLiteStore) -> None:
    for rollout in await store.query_rollouts():
        [record] = await store.records([rollout.rollout_id])
        [call] = (await read_trace(store, record)).calls
        [choice] = call.answer["choices"]
        if rollout.input == "completions":
            assert choice["text"] == call.text == "ANSWER 5"
        elif rollout.input == "tool":
            assert choice["message"]["tool_calls"][0]["function"]["name"] == "calculate" and call.text == ""
        else:
            assert choice["message"]["role"] == "assistant"
            assert (
                choice["message"]["content"]
                == call.text
                == ("no idea" if rollout.input == "stream" else "ANSWER 5")
            )


@pytest.mark.slow
async def test_calls_that_tests_make_by_hand_have_the_gateways_shape(
    store: SQLiteStore,
) -> None:
    """Where tests make calls by hand, an answer is the message itself, as here."""
    by_task = {one.input: await store.query_calls(one.rollout_id) for one in await store.query_rollouts()}
    asked, answered = calls_of("ro", "at", 0, 1.0)
    assert answered.response is not None and asked.response is not None
    assert answered.response.keys() == (by_task["chat"][0].response or {}).keys()
    assert asked.response.keys() == (by_task["tool"][0].response or {}).keys()
