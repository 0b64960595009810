"""The bundled agent: its tools, its turns, and its reward."""

from __future__ import annotations

from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call

import agentlightning as agl
from agentlightning import capture
from agentlightning.credit import resolve
from agentlightning.runner.runner import Runner
from agentlightning.store import SQLiteStore
from agl_examples.bundled.agent import solve, tool_schema
from agl_examples.bundled.math import calculate
from agl_examples.bundled.task_set import task_set


def llm_at(server: ScriptedModelServer) -> agl.LLM:
    return agl.LLM(endpoint=server.url, model="scripted", api_key="none")


async def run_one(agent: Any, server: ScriptedModelServer, task: Any) -> tuple[float | None, list[agl.Span]]:
    store = SQLiteStore(":memory:")
    await store.add_resources({"llm": llm_at(server)})
    capture.install()
    try:
        done = await Runner(agent, store).step(task)
    finally:
        capture.uninstall()
    spans = await store.spans(done.rollout_id)
    (record,) = await store.records([done.rollout_id])
    await store.close()
    return resolve(record).final, spans


def scripted(body: dict[str, Any]) -> Any:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"### ANSWER: {last['content']} ###"
    return tool_call("calculate", {"expression": "60+1"})


async def test_it_uses_tools_and_is_graded_by_the_set() -> None:
    task = {"set": "math", "question": "60 and 1?", "answer": "61"}
    with ScriptedModelServer(scripted) as server:
        reward, spans = await run_one(agl.Agent("clerk"), server, task)
        wrong, _ = await run_one(solve, server, {**task, "answer": "62"})
    assert (reward, wrong) == (1.0, 0.0)
    calls = [s.attributes for s in spans if s.name == "openai.chat.completion"]
    assert len(calls) == 2 and calls[0]["gen_ai.agent.name"] == "clerk"
    body = server.log[0].body
    assert body["messages"][0] == {"role": "system", "content": "Use the calculator."}
    assert body["tools"] == [tool_schema(calculate)]


async def test_a_tool_knows_its_task_and_may_fail() -> None:
    seen: list[Any] = []

    def lookup(word: str, times: int = 1) -> str:
        """Look a word up."""
        seen.append(agl.current_task())
        raise LookupError(word)

    def reply(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        return last["content"] if last["role"] == "tool" else tool_call("lookup", {"word": "moon"})

    agent = agl.Agent("a", "Be brief.", [lookup], grade=lambda task, text: float("LookupError: moon" in text))
    with ScriptedModelServer(reply) as server:
        reward, _ = await run_one(agent, server, {"question": "What is the moon?"})
    assert reward == 1.0 and seen == [{"question": "What is the moon?"}]
    schema = tool_schema(lookup)["function"]
    assert schema["description"] == "Look a word up."
    assert schema["parameters"]["properties"] == {"word": {"type": "string"}, "times": {"type": "integer"}}
    assert schema["parameters"]["required"] == ["word"]


async def test_turns_are_bounded() -> None:
    with ScriptedModelServer(lambda body: tool_call("nothing", {})) as server:
        reward, _ = await run_one(agl.Agent(max_turns=3), server, task_set("math").train[0])
    assert reward == 0.0 and len(server.log) == 3
    assert "there is no tool 'nothing'" in server.log[2].body["messages"][-1]["content"]


def test_what_cannot_work_is_refused() -> None:
    def sets(words: set[str]) -> None: ...

    with pytest.raises(agl.UsageError, match="parameter 'words'"):
        agl.Agent(tools=[sets])
    with pytest.raises(agl.UsageError, match="has no grader for this task"):
        agl.Agent().score("a text", "an answer")
    with pytest.raises(agl.UsageError, match="at least one model call"):
        agl.Agent(max_turns=0)
