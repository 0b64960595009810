"""What is smolagents' own: agents that write code, managed agents, several calls at once, refused calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("smolagents")

from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.template import text_of
from smolagents import CodeAgent, LogLevel, MultiStepAgent, OpenAIServerModel, Tool, ToolCallingAgent

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.emit import emit_reward
from agentlightning.keys import CONTEXT_KEY
from agl_smolagents.entries import entry_methods
from agl_smolagents.instrumentor import SmolagentsInstrumentor
from agl_smolagents.plugin import agl_adapters


class Rate(Tool):
    name, description, output_type = "rate", "Rate.", "string"
    inputs = {"n": {"type": "integer", "description": "A number."}}

    def forward(self, n: int) -> str:
        emit_reward(n, final=False)
        return str(2 * n)


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    SmolagentsInstrumentor().instrument()
    yield
    SmolagentsInstrumentor().uninstrument()


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer(lambda body: final("done"), ids="always") as server:
        yield server


@pytest.fixture
def model(server: ScriptedModelServer) -> Iterator[OpenAIServerModel]:
    model = OpenAIServerModel("policy", api_base=server.url, api_key=CONTEXT_KEY)
    yield model
    model.client.close()


@pytest.fixture
def recording(server: ScriptedModelServer) -> Recording:
    return Recording("smolagents", server.url)


def final(text: str) -> Any:
    return tool_call("final_answer", {"answer": text})


def last(body: dict[str, Any]) -> str:
    return text_of(body["messages"][-1]["content"])


def made(model: Any, *tools: Tool, kind: type[MultiStepAgent] = ToolCallingAgent, **more: Any) -> Any:
    return kind(tools=list(tools), model=model, verbosity_level=LogLevel.OFF, **{"name": "solver", **more})


def tools_of(recording: Recording) -> list[Any]:
    return recording.named("execute_tool")


# ------------------------------------------------------------------------------------------------------ tools
@feature("tools", "concurrency")
def test_several_calls_at_once_keep_their_own(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    wanted = [0, 1, 2, 2]
    calls = [
        tool_call("rate", {"n": n}, call_id=f"call_{at}")["tool_calls"][0] for at, n in enumerate(wanted)
    ]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    server.reply = lambda body: final("done") if "Observation:" in last(body) else asked
    with recording.active():
        made(model, Rate()).run("go")
    found = {
        span.attributes[semconv.TOOL_CALL_ID]: (
            json.loads(span.attributes[semconv.TOOL_CALL_ARGUMENTS])["n"],
            span.attributes[semconv.TOOL_CALL_RESULT],
        )
        for span in tools_of(recording)
    }
    assert found == {f"call_{at}": (n, str(2 * n)) for at, n in enumerate(wanted)}
    rewarded = recording.named(semconv.REWARD_SPAN)
    assert {span.parent_id for span in rewarded} == {span.span_id for span in tools_of(recording)}
    (invoked,) = recording.named("invoke_agent")
    assert {span.parent_id for span in (*tools_of(recording), *recording.calls)} == {invoked.span_id}


@feature("tools")
@pytest.mark.parametrize(("name", "arguments"), [("rat", '{"n": 1}'), ("rate", '{"m": 1}')])
def test_a_refused_call_leaves_a_failed_span(
    server: ScriptedModelServer, model: Any, recording: Recording, name: str, arguments: str
) -> None:
    server.reply = lambda body: final("done") if "Error:" in last(body) else tool_call(name, arguments)
    with recording.active():
        made(model, Rate()).run("go")
    (tool,) = tools_of(recording)
    assert (tool.status, tool.attributes[semconv.TOOL_NAME]) == ("error", name)
    assert tool.attributes[semconv.TOOL_CALL_RESULT] in last(server.log[1].body)
    assert len(recording.calls) == 2


@feature("tools")
def test_the_tools_of_an_agent_that_writes_code(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    server.reply = lambda body: "Thought: rate\n<code>\nfinal_answer(rate(n=3) + rate(4))\n</code>"
    with recording.active():
        assert made(model, Rate(), kind=CodeAgent).run("go") == "68"
    arguments = [json.loads(tool.attributes[semconv.TOOL_CALL_ARGUMENTS]) for tool in tools_of(recording)]
    assert arguments == [{"n": 3}, {"n": 4}]
    assert recording.agents() == ["solver"]
    (invoked,) = recording.named("invoke_agent")
    assert {tool.parent_id for tool in tools_of(recording)} == {invoked.span_id}


# ----------------------------------------------------------------------------------------------------- agents
@feature("multi-agent")
def test_a_managed_agent(server: ScriptedModelServer, model: Any, recording: Recording) -> None:
    def script(body: dict[str, Any]) -> Any:
        offered = [tool["function"]["name"] for tool in body["tools"]]
        done = "Observation:" in last(body)
        if "helper" in offered and not done:
            return tool_call("helper", {"task": "help", "additional_args": {}})
        return tool_call("rate", {"n": 1}) if "rate" in offered and not done else final("done")

    server.reply = script
    helper = made(model, Rate(), name="helper", description="Helps.")
    with recording.active():
        made(model, name="boss", managed_agents=[helper]).run("go")
    assert recording.agents() == ["boss", "helper", "helper", "boss"]
    names = {tool.attributes[semconv.TOOL_NAME]: tool for tool in tools_of(recording)}
    inner = next(s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "helper")
    assert inner.parent_id == names["helper"].span_id and names["rate"].parent_id == inner.span_id
    assert names["rate"].attributes[semconv.AGENT_NAME] == "helper"
    assert_exact(recording, server.log)


@feature("multi-agent")
def test_an_agent_without_a_name_has_its_classs(model: Any, recording: Recording) -> None:
    with recording.active():
        made(model, name=None).run("go")
    assert recording.agents() == ["ToolCallingAgent"]


@feature("stream")
def test_a_run_that_is_read_step_by_step(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    with recording.active():
        for _ in made(model, stream_outputs=True).run("go", stream=True):
            assert caller_tags() == {}
    assert recording.agents() == ["solver"] and server.log[0].body["stream"]
    (invoked,) = recording.named("invoke_agent")
    assert recording.calls[0].parent_id == invoked.span_id
    assert_exact(recording, server.log)


@feature("stream")
def test_a_stream_given_up_ends_the_turn(model: Any, recording: Recording) -> None:
    with recording.active():
        steps = made(model).run("go", stream=True)
        next(steps)
        with pytest.raises(RuntimeError):  # the framework yields once more as it is closed
            steps.close()
        assert caller_tags() == {}
    assert [span.name for span in recording.named("invoke_agent")] == ["invoke_agent solver"]


@feature("retries")
def test_the_answer_after_the_last_step_is_the_agents(
    server: ScriptedModelServer, model: Any, recording: Recording
) -> None:
    server.reply = lambda body: tool_call("rate", {"n": 1}) if body.get("tools") else "enough"
    with recording.active():
        assert made(model, Rate()).run("go", max_steps=1) == "enough"
    assert recording.agents() == ["solver", "solver"]


def test_after_a_turn_calls_are_nobodys(model: Any, recording: Recording) -> None:
    with recording.active():
        made(model).run("go")
        model.generate([{"role": "user", "content": "alone"}])
    assert recording.agents() == ["solver", None]


def test_outside_an_attempt_nothing_is_recorded(server: ScriptedModelServer, model: Any) -> None:
    made(model).run("go")
    assert len(server.log) == 1 and COUNTS.snapshot() == {}


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
def test_a_marked_agent_class(
    server: ScriptedModelServer, model: Any, recording: Recording, early: bool
) -> None:
    if early:
        SmolagentsInstrumentor().uninstrument()

    @agl.agent(name="mine", methods=entry_methods(ToolCallingAgent))
    class Mine(ToolCallingAgent):
        pass

    if early:
        SmolagentsInstrumentor().instrument()
    with recording.active():
        made(model, kind=Mine).run("go")
    assert recording.agents() == ["mine"]
    assert len(recording.named("invoke_agent solver")) == 1


def test_entry_methods() -> None:
    assert entry_methods(ToolCallingAgent) == entry_methods(CodeAgent) == ("run",)
    assert entry_methods(Tool) == entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("smolagents", "smolagents")
    assert spec.instrumentor() is SmolagentsInstrumentor()
    assert list(SmolagentsInstrumentor().instrumentation_dependencies()) == [spec.requires]
    assert spec.entry_methods is not None and spec.entry_methods(CodeAgent) == ("run",)
