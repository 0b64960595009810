"""What is DSPy's own: names of modules and steps, its cache, its two ways to the model, its streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

pytest.importorskip("dspy")

import dspy
import litellm
import openai._base_client as sdk
from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_each_exact, assert_exact
from agl_testing.contract.script import Failing
from agl_testing.template import text_of

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, caller_tags
from agentlightning.capture.sdk_call import RETRIES
from agentlightning.keys import CONTEXT_KEY
from agl_dspy.entries import entry_methods
from agl_dspy.instrumentor import DSPyInstrumentor
from agl_dspy.models import selecting
from agl_dspy.plugin import agl_adapters

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own, of pydantic


def fields(**given: str) -> str:
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**given, "completed": ""}.items())


def asks_for(name: str, body: dict[str, Any]) -> bool:
    """Whether the model is to write this field."""
    return f"`[[ ## {name} ## ]]`" in text_of(body["messages"][-1]["content"])


def say(body: dict[str, Any]) -> Any:
    """Call ``add`` once, then ``finish``; then answer."""
    if asks_for("next_tool_name", body):
        observed = "observation_0" in text_of(body["messages"][-1]["content"])
        name, given = ("finish", "{}") if observed else ("add", '{"a": 1,  "b": 2}')
        return fields(next_thought="so", next_tool_name=name, next_tool_args=given)
    return fields(reasoning="so", answer="done")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    DSPyInstrumentor().instrument()
    yield
    DSPyInstrumentor().uninstrument()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(say, ids="always") as server:
        yield server


@pytest.fixture
async def lm(server: ScriptedModelServer) -> AsyncIterator[dspy.LM]:
    """Its client is litellm's, by address: closed here, for later tests use the same ports."""
    lm = dspy.LM("openai/policy", api_base=server.url, api_key=CONTEXT_KEY, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        yield lm
    known = litellm.in_memory_llm_clients_cache.cache_dict
    for one in [known.pop(key) for key in list(known)]:
        if isinstance(one, sdk.AsyncAPIClient):
            await one.close()
        elif isinstance(one, sdk.SyncAPIClient):
            one.close()


@pytest.fixture
def recording(server: ScriptedModelServer, lm: dspy.LM) -> Recording:
    return Recording("dspy", server.url)


def nodes(recording: Recording) -> list[Any]:
    """Agent and node of each call."""
    return [(s.attributes[semconv.AGENT_NAME], s.attributes.get("agl.tag.node")) for s in recording.calls]


# ------------------------------------------------------------------------------------------------------ names
class Sketch(dspy.Signature):  # type: ignore[misc]
    """Sketch it."""

    task: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Draft(dspy.Module):  # type: ignore[misc]
    """A module of the user's own, and a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.think = dspy.ChainOfThought("task -> answer")

    async def aforward(self, task: str) -> Any:
        return await self.think.acall(task=task)


class Book(dspy.Module):  # type: ignore[misc]
    """Holds modules in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.draft = Draft()
        self.readers = [dspy.Predict("task -> answer"), dspy.Predict("task -> answer")]
        self.by_name = {"ann": dspy.Predict("task -> answer")}
        self.solver = dspy.ReAct("task -> answer", tools=[add])

    async def aforward(self, task: str) -> Any:
        parts = [self.draft, *self.readers, self.by_name["ann"], self.solver]
        parts += [dspy.Predict(Sketch), dspy.Predict("task -> answer")]
        for part in parts:
            answer = await part.acall(task=task)
        return answer


@feature("multi-agent")
async def test_modules_have_the_names_that_their_user_gave(recording: Recording, server: Any) -> None:
    with recording.active():
        await Book().acall(task="go")
    assert nodes(recording) == [
        ("think", "predict"),
        ("readers[0]", None),
        ("readers[1]", None),
        ("by_name[ann]", None),
        ("solver", "react"),
        ("solver", "react"),
        ("solver", "extract.predict"),
        ("Sketch", None),
        ("Book", "Predict"),
    ]
    spans = {span.span_id: span for span in recording.spans}
    inner = recording.calls[0]
    names = []
    while inner.parent_id in spans:
        inner = spans[inner.parent_id]
        names.append(inner.name)
    assert names == ["invoke_agent think", "invoke_agent Draft", "invoke_agent Book"]
    assert_exact(recording, server.log)


async def test_a_subclass_that_runs_as_its_parent_does_is_one_agent(recording: Recording) -> None:
    class Sums(dspy.ReAct):  # type: ignore[misc]
        pass

    with recording.active():
        await Sums("task -> answer", tools=[add]).acall(task="go")
    assert recording.agents() == ["Sums"] * 3


async def test_modules_that_stand_alone_have_their_class_s_name(recording: Recording) -> None:
    with recording.active():
        await dspy.ChainOfThought("task -> answer").acall(task="go")
        await dspy.Predict(Sketch).acall(task="go")
    assert nodes(recording) == [("ChainOfThought", "predict"), ("Sketch", None)]


@feature("concurrency")
async def test_parallel_modules_in_threads(recording: Recording, server: Any) -> None:
    class Many(dspy.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = dspy.Predict("task -> answer"), dspy.Predict("task -> answer")

        def forward(self, task: str) -> Any:
            pairs = [(self.left, {"task": task}), (self.right, {"task": task})] * 4
            return dspy.Parallel(num_threads=4, disable_progress_bar=True)(pairs)

    with recording.active():
        await dspy.asyncify(Many())(task="go")
    assert Counter(recording.agents()) == {"left": 4, "right": 4}
    assert_each_exact(recording, server.log)


async def test_a_marked_module_class(recording: Recording) -> None:
    @agl.agent(name="mine", methods=entry_methods(dspy.Module))
    class Mine(Draft):
        async def aforward(self, task: str) -> Any:
            return await dspy.Predict("task -> answer").acall(task=task)

    with recording.active():
        await Mine().acall(task="go")
    assert recording.agents() == ["mine"]


# ------------------------------------------------------------------------------------------------------ tools
@feature("tools", "multi-agent")
async def test_an_agent_as_a_tool(recording: Recording, server: Any) -> None:
    helper = Draft()

    async def ask(question: str) -> str:
        """Ask the helper."""
        return str((await helper.acall(task=question)).answer)

    def script(body: dict[str, Any]) -> Any:
        return str(say(body)).replace("add", "ask").replace('{"a": 1,  "b": 2}', '{"question": "how?"}')

    server.reply = script
    with recording.active():
        await dspy.ReAct(Sketch, tools=[ask], max_iters=1).acall(task="go")
    assert recording.agents() == ["Sketch", "think", "Sketch"]
    (asked,) = recording.named("execute_tool")
    (inner,) = (s for s in recording.named("invoke_agent") if s.attributes[semconv.AGENT_NAME] == "Draft")
    assert inner.parent_id == asked.span_id
    assert asked.attributes[semconv.TOOL_CALL_ARGUMENTS] == '{"question": "how?"}'
    assert asked.attributes[semconv.TOOL_CALL_RESULT] == "done"
    assert_exact(recording, server.log)


@feature("tools")
async def test_finish_is_no_tool_call(recording: Recording, server: Any) -> None:
    with recording.active():
        await dspy.ReAct("task -> answer", tools=[add]).acall(task="go")
    assert [span.attributes[semconv.TOOL_NAME] for span in recording.named("execute_tool")] == ["add"]
    assert_exact(recording, server.log)


@feature("tools")
async def test_tools_that_the_model_calls_by_the_api(
    recording: Recording, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Calls(dspy.Signature):  # type: ignore[misc]
        """Call it."""

        task: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    server.reply = lambda body: tool_call("add", '{"a":  1, "b": 2}')
    tool = dspy.Tool(add)
    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    monkeypatch.setattr(dspy.LM, "supports_function_calling", True, raising=False)
    monkeypatch.setattr(litellm, "supports_function_calling", lambda *args, **kwargs: True)
    with recording.active(), dspy.context(adapter=adapter):
        asked = (await dspy.Predict(Calls).acall(task="go", tools=[tool])).calls.tool_calls
        assert [await tool.acall(**call.args) for call in asked] == [3]
    assert server.log[0].body["tools"][0]["function"]["name"] == "add"
    (called,) = recording.named("execute_tool")
    assert called.attributes[semconv.TOOL_CALL_ARGUMENTS] == '{"a": 1, "b": 2}'
    assert_exact(recording, server.log)


# ------------------------------------------------------------------------------------------------------ cache
async def test_in_rollouts_no_answer_comes_from_the_cache(recording: Recording, server: Any) -> None:
    asked = dspy.Predict("task -> answer")
    for _ in range(2):
        await asked.acall(task="cached")
    assert len(server.log) == 1, "outside, DSPy's cache answers"
    with recording.active():
        for _ in range(2):
            await asked.acall(task="cached")
            await asked.acall(task="new")
    assert len(server.log) == 5 and len(recording.calls) == 4
    await asked.acall(task="new")
    assert len(server.log) == 6, "and it has no answer of a rollout's"
    assert_each_exact(recording, server.log[1:5])


# --------------------------------------------------------------------------------------- ways to the model
@pytest.mark.skipif(not selecting(), reason="this DSPy has one way to the model")
async def test_what_is_left_to_dspy_goes_by_the_sdk(recording: Recording, server: Any, lm: Any) -> None:
    own = lm.copy(engine="lm15")
    asked = dspy.Predict("task -> answer")
    with recording.active():
        await asked.acall(task="left to DSPy")
        with dspy.context(lm=own):
            await asked.acall(task="the user's choice")
    await own.aclose()
    assert len(server.log) == 2
    assert_exact(recording, server.log[:1])


async def test_a_prompt_that_is_too_long(recording: Recording, server: Any) -> None:
    """ReAct forgets its oldest step and asks again; with none left it asks for the answer at once."""
    server.max_model_len = 5
    with recording.active(), pytest.raises(Exception, match=r"(?i)context|too long"):
        await dspy.ReAct("task -> answer", tools=[add]).acall(task="go")
    assert {exchange.status for exchange in server.log} == {400}
    assert [span.status for span in recording.calls] == ["error"] * len(server.log)
    assert set(recording.agents()) == {"ReAct"}


async def test_an_answer_in_the_wrong_form_is_asked_for_again(recording: Recording, server: Any) -> None:
    """As JSON: a call of its own, of the same agent."""
    server.reply = lambda body: '{"answer": "done"}' if body.get("response_format") else "no fields"
    with recording.active():
        assert (await dspy.Predict("task -> answer").acall(task="go")).answer == "done"
    assert recording.agents() == ["Predict"] * len(server.log) and len(server.log) >= 2
    assert_exact(recording, server.log)


# ---------------------------------------------------------------------------------------------------- retries
def tries(recording: Recording) -> int:
    """How often the calls on record were sent."""
    return sum(span.attributes[RETRIES] + 1 for span in recording.calls)


@feature("retries")
@pytest.mark.parametrize("status", [429, 500])
async def test_every_try_of_dspys_is_recorded(
    recording: Recording, server: Any, lm: Any, status: int
) -> None:
    """DSPy and litellm try again, the openai SDK where it is told to: no try is lost."""
    server.reply = Failing(say, status)
    with recording.active(), dspy.context(lm=lm.copy(num_retries=1)):
        assert (await dspy.Predict("task -> answer").acall(task="go")).answer == "done"
    assert [exchange.status for exchange in server.log] == [status, 200]
    assert tries(recording) == 2 and recording.calls[-1].status == "ok"
    assert set(recording.agents()) == {"Predict"}
    assert_exact(recording, server.log)


@feature("retries")
async def test_a_model_that_fails_for_good(recording: Recording, server: Any, lm: Any) -> None:
    server.reply = Failing(say, 500, forever=True)
    again = dspy.context(lm=lm.copy(num_retries=1))
    with recording.active(), again, pytest.raises(Exception, match="not now"):
        await dspy.Predict("task -> answer").acall(task="go")
    assert {span.status for span in recording.calls} == {"error"}
    assert tries(recording) == len(server.log) >= 2


# ----------------------------------------------------------------------------------------------------- stream
@feature("stream")
async def test_a_program_that_is_streamed(recording: Recording, server: Any) -> None:
    with recording.active():
        async for _ in dspy.streamify(Book(), is_async_program=True)(task="go"):
            assert caller_tags() == {}
    assert len(recording.calls) == 9 and server.log[0].body["stream"]
    assert recording.agents()[:2] == ["think", "readers[0]"]
    assert_exact(recording, server.log)


@feature("stream", "sync")
def test_a_blocking_program_that_is_streamed() -> None:
    with ScriptedModelServer(say, ids="always") as server:
        lm = dspy.LM("openai/policy", api_base=server.url, api_key=CONTEXT_KEY, num_retries=0)
        recording = Recording("blocking", server.url)
        with recording.active(), dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            program = dspy.streamify(dspy.ReAct("task -> answer", tools=[add]), async_streaming=False)
            *_, answer = program(task="go")
        litellm.in_memory_llm_clients_cache.flush_cache()
    assert answer.answer == "done" and server.log[0].body["stream"]
    assert recording.agents() == ["ReAct"] * 3
    assert_exact(recording, server.log)


# -------------------------------------------------------------------------------------------------- elsewhere
async def test_outside_an_attempt_nothing_is_recorded(lm: Any, server: Any) -> None:
    answer = await dspy.ReAct("task -> answer", tools=[add]).acall(task="outside")
    assert answer.answer == "done" and len(server.log) == 3 and COUNTS.snapshot() == {}


def test_entry_methods() -> None:
    assert entry_methods(Book) == entry_methods(dspy.Predict) == ("__call__", "acall")
    assert entry_methods(dspy.Tool) == entry_methods(dict) == ()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("dspy", "dspy")
    assert spec.instrumentor() is DSPyInstrumentor()
    assert list(DSPyInstrumentor().instrumentation_dependencies()) == [spec.requires]
    assert spec.entry_methods is not None and "acall" in spec.entry_methods(dspy.Module)
