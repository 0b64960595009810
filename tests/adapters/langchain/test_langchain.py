"""What is LangChain's own: names and metadata, structured output, streams, batches, threads, handoffs."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.features import feature
from agl_testing.contract.recording import Recording, assert_each_exact, assert_exact
from agl_testing.contract.through_gateway import assert_one_row, leased_attempt
from contract.chat_openai import given, opened
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_core.tracers import context as tracers
from langchain_openai import ChatOpenAI
from opentelemetry import trace
from pydantic import BaseModel

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.emit import recorded_operation
from agentlightning.capture.identity import CALLER_SOURCES
from agentlightning.semconv import PARTIAL
from agl_langchain.entries import entry_methods
from agl_langchain.handler import _HOOK, HANDLER
from agl_langchain.instrumentor import LangChainInstrumentor
from agl_langchain.plugin import agl_adapters
from agl_langchain.runs import RUN_READERS, RUNS
from agl_langchain.tools import HANDOFF


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(autouse=True)
def instrumented() -> Iterator[None]:
    COUNTS.clear()
    LangChainInstrumentor().instrument()
    yield
    assert not RUNS  # no run is kept beyond its end
    LangChainInstrumentor().uninstrument()


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
async def model(server: ScriptedModelServer) -> AsyncIterator[Any]:
    async with opened(server.url) as model:
        yield model


def tag(recording: Recording, name: str) -> list[Any]:
    return [span.attributes.get(semconv.TAG_PREFIX + name) for span in recording.calls]


# ------------------------------------------------------------------------------------------------ names
@feature("multi-agent")
async def test_an_agent_as_a_tool_speaks_for_itself(server: ScriptedModelServer, model: Any) -> None:
    def script(body: dict[str, Any]) -> Any:
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return tool_call("consult", {"question": "help"})
        return "done"

    server.reply = script
    inner = create_agent(model, name="inner")

    @tool
    async def consult(question: str) -> str:
        """Ask the expert."""
        return str((await inner.ainvoke(given(question)))["messages"][-1].content)

    recording = Recording("nested", server.url)
    with recording.active():
        await create_agent(model, [consult], name="outer").ainvoke(given("go"))
    assert recording.agents() == ["outer", "inner", "outer"]
    assert_exact(recording, server.log)
    turns = {span.attributes[semconv.AGENT_NAME]: span for span in recording.named("invoke_agent")}
    (executed,) = recording.named("execute_tool")
    calls = recording.calls
    assert executed.attributes[semconv.AGENT_NAME] == "outer"
    assert [call.parent_id for call in calls] == [
        turns["outer"].span_id,
        turns["inner"].span_id,
        turns["outer"].span_id,
    ]
    assert turns["inner"].parent_id == executed.span_id and executed.parent_id == turns["outer"].span_id
    assert len({span.trace_id for span in recording.spans}) == 1


async def test_metadata_are_tags(server: ScriptedModelServer, model: Any) -> None:
    """Where a chain and its caller say different things, LangChain lets the caller win."""
    chain = ChatPromptTemplate.from_template("judge {x}") | model | StrOutputParser()
    judge = chain.with_config(metadata={"agl.agent": "judge", "agl.role": "critic", "agl.phase": "final"})
    both = judge | (lambda text: {"x": text}) | chain.with_config(metadata={"agl.agent": "second"})
    recording = Recording("metadata", server.url)
    with recording.active():
        await judge.ainvoke({"x": "1"})
        both.with_config(metadata={"agl.phase": "night"}).invoke({"x": "2"})
        judge.invoke({"x": "3"}, {"metadata": {"agl.phase": "late"}})
    assert recording.agents() == ["judge", "judge", "second", "judge"]
    assert tag(recording, "role") == ["critic", "critic", "second", "critic"]
    assert tag(recording, "phase") == ["final", "night", "night", "late"]
    assert len(recording.named("invoke_agent")) == 4
    assert_exact(recording, server.log)


async def test_who_is_not_named_has_no_agent(server: ScriptedModelServer, model: Any) -> None:
    recording = Recording("nobody", server.url)
    with recording.active():
        await model.ainvoke("hello")
        await (ChatPromptTemplate.from_template("{x}") | model).ainvoke({"x": "hello"})
        await create_agent(model).ainvoke(given("hello"))
    assert recording.agents() == [None, None, None]
    assert [span.name for span in recording.spans] == [semconv.CALL_SPAN] * 3
    assert_exact(recording, server.log)


async def test_a_middlewares_own_calls_are_its_agents(server: ScriptedModelServer, model: Any) -> None:
    middleware = SummarizationMiddleware(model=model, trigger=("messages", 3), keep=("messages", 1))
    agent = create_agent(model, name="solver", middleware=[middleware])
    recording = Recording("summary", server.url)
    with recording.active():
        await agent.ainvoke({"messages": [("user", "a"), ("ai", "b"), ("user", "c"), ("ai", "d")] * 2})
    assert recording.agents() == ["solver", "solver"]
    assert_exact(recording, server.log)


async def test_agl_agent_on_classes_of_users(server: ScriptedModelServer, model: Any) -> None:
    @agl.agent(methods=["ainvoke", "astream"])
    class Writer:
        def __init__(self) -> None:
            self.chain = ChatPromptTemplate.from_template("{x}") | model

        async def ainvoke(self, x: str) -> Any:
            return await self.chain.ainvoke({"x": x})

        async def astream(self, x: str) -> AsyncIterator[Any]:
            async for chunk in self.chain.astream({"x": x}):
                yield chunk

    recording = Recording("decorated", server.url)
    with recording.active():
        await Writer().ainvoke("a")
        _ = [chunk async for chunk in Writer().astream("b")]
    assert recording.agents() == ["Writer", "Writer"]
    assert_exact(recording, server.log)


def test_entry_methods() -> None:
    class Mine(Runnable[Any, Any]):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return input

        async def astream(self, input: Any, config: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
            yield input

    assert list(entry_methods(Mine)) == ["invoke", "astream"]
    assert list(entry_methods(ChatOpenAI)) == ["invoke", "ainvoke", "stream", "astream"]
    assert list(entry_methods(dict)) == []
    assert agl.agent(name="me", methods=entry_methods(Mine))(Mine) is Mine
    assert Mine().invoke(3) == 3


async def test_a_marked_chat_model_names_its_streams_and_batches_too(server: ScriptedModelServer) -> None:
    @agl.agent(name="voice", methods=entry_methods(ChatOpenAI))
    class Voice(ChatOpenAI):
        pass

    recording = Recording("marked", server.url)
    with recording.active():
        model = Voice(model="policy", base_url=server.url, api_key="agl-context", max_retries=0)  # type: ignore[call-arg,arg-type]
        model.invoke("hi")
        assert "".join(str(chunk.content) for chunk in model.stream("hi"))
        await model.ainvoke("hi")
        assert [chunk async for chunk in model.astream("hi")]
        model.batch(["a", "b"])
        await model.bind_tools([add]).ainvoke("hi")
        ChatOpenAI(model="policy", base_url=server.url, api_key="agl-context").invoke("hi")  # type: ignore[arg-type]
    assert recording.agents() == ["voice"] * 7 + [None]
    assert_each_exact(recording, server.log)  # a batch asks at the same time


# ------------------------------------------------------------------------- how models are asked
class Answer(BaseModel):
    """An answer."""

    value: int


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # LangChain's own, streaming a schema
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
@feature("structured")
async def test_structured_output(server: ScriptedModelServer, model: Any, method: str, how: str) -> None:
    def script(body: dict[str, Any]) -> Any:
        return tool_call("Answer", {"value": 42}) if body.get("tools") else '{"value": 42}'

    server.reply = script
    asked = model.with_structured_output(Answer, method=method).with_config(metadata={"agl.agent": "typed"})
    recording = Recording("typed", server.url)
    with recording.active():
        if how == "invoke":
            found = asked.invoke("in json")
        elif how == "ainvoke":
            found = await asked.ainvoke("in json")
        elif how == "stream":
            *_, found = asked.stream("in json")
        else:
            *_, found = [chunk async for chunk in asked.astream("in json")]
    assert found == Answer(value=42)
    assert recording.agents() == ["typed"]
    assert_exact(recording, server.log)
    assert COUNTS.snapshot() == {}


@feature("structured")
async def test_a_structured_answer_that_does_not_parse_is_exact(
    server: ScriptedModelServer, model: Any
) -> None:
    server.reply = lambda body: "no json at all"
    recording = Recording("unparsed", server.url)
    with recording.active(), pytest.raises(Exception, match=r"(?i)json|pars"):
        await model.with_structured_output(Answer, method="json_schema").ainvoke("in json")
    assert len(recording.calls) == 1
    assert semconv.TOKENS_DIGEST in recording.calls[0].attributes


@feature("concurrency")
async def test_batches_and_parallel_identical_prompts_keep_apart(
    server: ScriptedModelServer, model: Any
) -> None:
    chain = (ChatPromptTemplate.from_template("{x}") | model).with_config(metadata={"agl.agent": "many"})
    fan = RunnableParallel(left=chain, right=chain.with_config(metadata={"agl.agent": "other"}))
    recording = Recording("batch", server.url)
    with recording.active():
        chain.batch([{"x": "same"}] * 4)
        await chain.abatch([{"x": "same"}] * 4)
        fan.invoke({"x": "same"})
        await fan.ainvoke({"x": "same"})
        model.with_config(metadata={"agl.agent": "solo"}).invoke("same")
    assert sorted(recording.agents()) == ["many"] * 10 + ["other"] * 2 + ["solo"]
    assert {span.attributes[semconv.RESPONSE_ID] for span in recording.calls} == {
        exchange.response_id for exchange in server.log
    }
    assert len(recording.calls) == 13


async def test_several_choices_are_several_spans(server: ScriptedModelServer, model: Any) -> None:
    server.reply = lambda body: ["one", "two", "three"]
    recording = Recording("n", server.url)
    async with opened(server.url, n=3) as many:
        with recording.active():
            result = await many.agenerate([[HumanMessage("hello")]])
    assert [generation.text for generation in result.generations[0]] == ["one", "two", "three"]
    assert [span.attributes[semconv.CHOICE] for span in recording.calls] == [0, 1, 2]
    (exchange,) = server.log
    for span, answer in zip(recording.calls, exchange.answers, strict=True):
        assert span.attributes[semconv.RESPONSE_COUNT] == len(answer.ids)


@pytest.mark.parametrize("face", ["stream", "astream"])
@feature("stream")
async def test_a_stream_given_up_is_a_partial_call(
    server: ScriptedModelServer, model: Any, face: str
) -> None:
    server.reply = lambda body: "word " * 50
    chain = (RunnableLambda(lambda x: x) | model).with_config(metadata={"agl.agent": "broken"})
    recording = Recording("partial", server.url)
    with recording.active():
        if face == "stream":
            chunks = chain.stream("go")
            next(chunks)
            chunks.close()
        else:
            achunks = chain.astream("go")
            await anext(achunks)
            await achunks.aclose()
    for _ in range(1000):  # the event loop closes generators that were given up, in its own time
        if recording.calls:
            break
        gc.collect()
        await asyncio.sleep(0.02)
    (call,) = recording.calls
    assert call.attributes[PARTIAL] is True and recording.agents() == ["broken"]


async def test_a_cancelled_agent_leaves_errors_and_no_runs(server: ScriptedModelServer, model: Any) -> None:
    asked = threading.Event()

    def script(body: dict[str, Any]) -> Any:
        asked.set()
        return Reply(message="late", delay=30)

    server.reply = script
    recording = Recording("cancelled", server.url)
    with recording.active():
        work = asyncio.create_task(create_agent(model, name="slow").ainvoke(given("go")))
        await asyncio.to_thread(asked.wait)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    (call,) = recording.calls
    (turn,) = recording.named("invoke_agent")
    assert (call.status, turn.status) == ("error", "error")
    assert turn.attributes[semconv.EXCEPTION_TYPE] == "CancelledError"


@feature("tools")
async def test_a_cancelled_tool_is_seen(server: ScriptedModelServer, model: Any) -> None:
    """LangChain says nothing of a tool that was cancelled; it ends with the run around it."""
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    server.reply = lambda body: tool_call("wait", {})
    recording = Recording("waiting", server.url)
    with recording.active():
        work = asyncio.create_task(create_agent(model, [wait], name="patient").ainvoke(given("go")))
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    (executed,) = recording.named("execute_tool")
    assert executed.status == "error" and executed.attributes[semconv.EXCEPTION_TYPE] == "CancelledError"


async def test_a_retrievers_own_calls_are_its_agents(server: ScriptedModelServer, model: Any) -> None:
    class Expanding(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            said = model.invoke(query, {"callbacks": run_manager.get_child()})
            return [Document(str(said.content))]

    recording = Recording("retriever", server.url)
    chain = (RunnableLambda(lambda x: x) | Expanding()).with_config(metadata={"agl.agent": "finder"})
    with recording.active():
        chain.invoke("what?")
        await chain.ainvoke("what?")
    assert recording.agents() == ["finder", "finder"]
    assert len(recording.named("invoke_agent")) == 2


@feature("tools")
async def test_arguments_come_back_re_serialised_and_calls_stay_exact(
    server: ScriptedModelServer, model: Any
) -> None:
    written = '{"a": 1,   "b":2}'

    def script(body: dict[str, Any]) -> Any:
        return "three" if body["messages"][-1]["role"] == "tool" else tool_call("add", written)

    server.reply = script
    recording = Recording("spaces", server.url)
    with recording.active():
        await create_agent(model, [add], name="solver").ainvoke(given("go"))
    first, second = server.log
    sent_back = second.body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert sent_back != written and json.loads(sent_back) == json.loads(written)
    extended = first.prompt_ids + first.answers[0].ids
    assert second.prompt_ids[: len(extended)] != extended  # its row begins anew
    assert_exact(recording, server.log)


# ----------------------------------------------------------------------------------- threads and spans
@feature("concurrency")
async def test_threads_of_the_users_own_keep_the_agent(server: ScriptedModelServer, model: Any) -> None:
    chain = ChatPromptTemplate.from_template("{x}") | model

    def fan_out(given: Any, config: Any) -> str:
        workers = [
            threading.Thread(target=lambda: chain.invoke({"x": "bare"})),
            threading.Thread(target=lambda: chain.invoke({"x": "told"}, config)),
            threading.Thread(target=lambda: model.invoke("model")),
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return "done"

    boss = RunnableLambda(fan_out).with_config(metadata={"agl.agent": "boss"})
    recording = Recording("threads", server.url)
    with recording.active():
        boss.invoke("go")
        await boss.ainvoke("go")
    assert recording.agents() == ["boss"] * 6
    turns = {span.span_id for span in recording.named("invoke_agent")}
    assert len(turns) == 2 and {call.parent_id for call in recording.calls} == turns


async def test_spans_of_others_inside_a_run_are_nearer(server: ScriptedModelServer, model: Any) -> None:
    tracer: Any = trace.get_tracer("theirs")

    async def work(given: Any) -> str:
        with recorded_operation("search", {}):
            await model.ainvoke("in the operation")
        with tracer.start_as_current_span("guest", attributes={semconv.AGENT_NAME: "guest"}):
            await model.ainvoke("another framework's agent")
        await model.ainvoke("ours again")
        return "done"

    recording = Recording("inside", server.url)
    with recording.active():
        await RunnableLambda(work).with_config(metadata={"agl.agent": "host"}).ainvoke("go")
    assert recording.agents() == ["host", "guest", "host"]
    (operation,) = recording.named(semconv.OPERATION_SPAN)
    (guest,) = recording.named("guest")
    (turn,) = recording.named("invoke_agent")
    assert [call.parent_id for call in recording.calls] == [operation.span_id, guest.span_id, turn.span_id]
    assert operation.parent_id == turn.span_id


async def test_a_reward_inside_a_tool_hangs_below_it(server: ScriptedModelServer, model: Any) -> None:
    @tool
    def grade(points: float) -> str:
        """Give points."""
        agl.emit_reward(points, final=False)
        return "graded"

    replies = iter([tool_call("grade", {"points": 0.5}), "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("graded", server.url)
    with recording.active():
        await create_agent(model, [grade], name="teacher").ainvoke(given("go"))
    (reward,) = recording.named(semconv.REWARD_SPAN)
    (executed,) = recording.named("execute_tool")
    assert reward.parent_id == executed.span_id and reward.attributes[semconv.AGENT_NAME] == "teacher"


@feature("tools")
async def test_tools_that_answer_with_more_than_text(server: ScriptedModelServer, model: Any) -> None:
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import InjectedToolCallId
    from langgraph.types import Command

    @tool(response_format="content_and_artifact")
    def look(x: int) -> tuple[Any, Any]:
        """Look."""
        return [{"type": "text", "text": "seen"}], object()

    def leave(call_id: Any) -> Any:
        """Leave."""
        message = ToolMessage("left", tool_call_id=call_id)
        return Command(goto="__end__", update={"messages": [message]})

    leave.__annotations__["call_id"] = __import__("typing").Annotated[str, InjectedToolCallId]
    calls = [tool_call("look", {"x": 1}, "call_1"), tool_call("leave", {}, "call_2")]
    both = {"role": "assistant", "content": None, "tool_calls": [one["tool_calls"][0] for one in calls]}
    replies = iter([both, "done"])
    server.reply = lambda body: next(replies)
    recording = Recording("rich", server.url)
    with recording.active():
        await create_agent(model, [look, tool(leave)], name="solver").ainvoke(given("go"))
    found = {span.attributes[semconv.TOOL_NAME]: span.attributes for span in recording.named("execute_tool")}
    assert json.loads(found["look"][semconv.TOOL_CALL_RESULT]) == [{"type": "text", "text": "seen"}]
    assert found["leave"][semconv.TOOL_CALL_RESULT] == "left" and found["leave"][HANDOFF] == "__end__"
    assert found["leave"][semconv.TOOL_CALL_ID] == "call_2"
    assert found["leave"][semconv.TOOL_CALL_ARGUMENTS] == "{}"


# ------------------------------------------------------------------------------------------- the door
async def test_outside_an_attempt_nothing_is_kept(server: ScriptedModelServer, model: Any) -> None:
    await create_agent(model, [add], name="solver").ainvoke(given("go"))
    assert not RUNS and COUNTS.snapshot() == {}


def test_there_is_one_handler_however_it_is_copied() -> None:
    config = {"callbacks": [HANDLER]}
    assert copy.deepcopy(config)["callbacks"][0] is HANDLER
    assert pickle.loads(pickle.dumps(config))["callbacks"][0] is HANDLER


def test_an_error_of_ours_is_counted_and_not_the_chains(server: ScriptedModelServer) -> None:
    def broken(run: Any) -> None:
        raise RuntimeError("ours")

    RUN_READERS.append(broken)
    try:
        recording = Recording("broken", server.url)
        with recording.active():
            assert RunnableLambda(lambda x: x + 1).invoke(1) == 2
    finally:
        RUN_READERS.remove(broken)
    assert COUNTS.snapshot() == {"langchain-callback-error": 1}


async def test_runs_end_when_it_is_switched_off(server: ScriptedModelServer, model: Any) -> None:
    async def work(given: Any) -> str:
        LangChainInstrumentor().uninstrument()
        await model.ainvoke("unseen")
        return "done"

    recording = Recording("off", server.url)
    with recording.active():
        assert await RunnableLambda(work).with_config(metadata={"agl.agent": "a"}).ainvoke("go") == "done"
    (turn,) = recording.spans
    assert turn.status == "error" and "switched off" in (turn.status_message or "")
    assert not RUNS and COUNTS.snapshot() == {}
    LangChainInstrumentor().instrument()


def test_the_door_is_closed_after_uninstrument() -> None:
    def hooks() -> list[Any]:
        return [hook for hook in tracers._configure_hooks if hook[0] is _HOOK]

    assert len(hooks()) == 1 and HANDLER.active
    LangChainInstrumentor().uninstrument()
    assert hooks() == CALLER_SOURCES == RUN_READERS == [] and not HANDLER.active
    LangChainInstrumentor().instrument()


def test_the_plugin() -> None:
    (spec,) = agl_adapters()
    assert (spec.name, spec.framework) == ("langchain", "langchain_core")
    assert spec.instrumentor() is LangChainInstrumentor()
    assert spec.entry_methods is not None and spec.entry_methods(int) == ()
    assert list(LangChainInstrumentor().instrumentation_dependencies()) == [spec.requires]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("remembered", [False, True])
async def test_the_responses_api_is_exact_and_one_row(
    remembered: bool, streaming: bool, tmp_path: Path
) -> None:
    async with ScriptedModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        with leased.active():
            model = ChatOpenAI(
                model="policy",
                base_url=leased.context.gateway,
                api_key=leased.context.key,
                use_responses_api=True,
                use_previous_response_id=remembered,
                streaming=streaming,
            )
            said: list[Any] = [HumanMessage("one")]
            for text in ("two", "three"):
                said += [await model.ainvoke(said), HumanMessage(text)]
            await model.ainvoke(said)
        record, verdicts = await leased.finish()
    assert [verdict.kind for verdict in verdicts] == ["exact"] * 3
    assert_one_row(record, engine.log)
    assert [call.edited.get("continues", "")[:5] for call in record.calls[1:]] == [remembered * "resp_"] * 2
