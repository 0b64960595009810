"""The anthropic SDK at the gateway: exact with the adapter, recorded all the same without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anthropic")

import anthropic
import anthropic._base_client as sdk
from agl_gateway.apis.messages import MESSAGES
from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.through_gateway import leased_attempt
from core.capture.conftest import capturing as capturing
from hypothesis import given, settings, strategies as st
from marks import examples

from agentlightning import semconv
from agentlightning.capture.adapter import AnthropicInstrumentor
from agentlightning.capture.context import tagged
from agentlightning.capture.emit import emit_reward
from agentlightning.keys import CONTEXT_KEY

USER = {"role": "user", "content": "what is 1 + 1?"}
ASK: dict[str, Any] = {"model": "policy", "max_tokens": 20, "messages": [USER]}
ARGUMENTS = '{"x":  "1 + 1"}'
TOOLS: list[Any] = [{"name": "add", "input_schema": {"type": "object", "properties": {}}}]
OWNERS = [(sdk.SyncAPIClient, "request"), (sdk.AsyncAPIClient, "request"), (sdk.BaseClient, "_build_request")]
http: Any = vars(sdk).get("httpx2") or vars(sdk)["httpx"]


@pytest.fixture
def instrumented(capturing: None) -> Iterator[None]:
    AnthropicInstrumentor().instrument()
    yield
    AnthropicInstrumentor().uninstrument()


def client(url: str, key: str = CONTEXT_KEY, retries: int = 0) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key=key, max_retries=retries)


async def tool_agent(c: anthropic.AsyncAnthropic, stream: bool) -> str:
    """Two turns: a tool call, and an answer after its result."""
    first = await ask(c, stream, [USER])
    use = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "2"}
    turns = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = await ask(c, stream, turns)
    return str(last.content[0].text)


async def ask(c: anthropic.AsyncAnthropic, stream: bool, turns: list[Any]) -> Any:
    if not stream:
        return await c.messages.create(**ASK | {"messages": turns}, tools=TOOLS)
    async with c.messages.stream(**ASK | {"messages": turns}, tools=TOOLS) as events:
        return await events.get_final_message()


def script(body: dict[str, Any]) -> Any:
    return "it is 2" if body["messages"][-1]["role"] == "tool" else tool_call("add", ARGUMENTS, content="see")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_agent_is_exact(instrumented: None, tmp_path: Path, stream: bool) -> None:
    async with ScriptedModelServer(script) as engine, leased_attempt(engine, tmp_path) as leased:
        async with client(leased.context.gateway or "") as c:
            with leased.active(), tagged(agent="solver"):
                assert await tool_agent(c, stream) == "it is 2"
        record, verdicts = await leased.finish()
    assert [verdict.kind for verdict in verdicts] == ["exact"] * 2, verdicts
    assert [call.tags["agent"] for call in record.calls] == ["solver"] * 2
    assert [call.attributes[semconv.PROVIDER_NAME] for call in leased.calls] == ["anthropic"] * 2
    first, last = record.calls
    assert first.prompt_ids is not None and first.response_ids is not None and last.prompt_ids is not None
    extended = first.prompt_ids + first.response_ids
    assert last.prompt_ids[: len(extended)] == extended, "parsed arguments go back as the model wrote them"


async def test_without_the_adapter_it_is_recorded_under_the_clients_key(
    capturing: None, tmp_path: Path
) -> None:
    async with ScriptedModelServer(script) as engine, leased_attempt(engine, tmp_path) as leased:
        async with client(leased.context.gateway or "", leased.context.key or "") as c:
            assert await tool_agent(c, stream=True) == "it is 2"
        record, verdicts = await leased.finish()
    assert [verdict.kind for verdict in verdicts] == ["gateway-only"] * 2
    assert all(call.has_ids and call.attempt_id == leased.context.attempt_id for call in record.calls)


async def test_sync_and_concurrent(instrumented: None, server: ScriptedModelServer) -> None:
    recordings = [Recording(str(number), server.url) for number in range(8)]

    def one(recording: Recording) -> None:
        url = server.url.removesuffix("/v1")
        with recording.active(), anthropic.Anthropic(base_url=url, api_key=CONTEXT_KEY) as c:
            c.messages.create(**ASK)
            with c.messages.stream(**ASK) as stream:
                stream.until_done()

    await asyncio.gather(*(asyncio.to_thread(one, recording) for recording in recordings))
    for recording in recordings:
        key = f"Bearer {recording.context.key}"
        assert_exact(recording, [e for e in server.log if e.headers["authorization"] == key])
        assert len(recording.calls) == 2


async def test_a_retried_call_is_one_span(instrumented: None, tmp_path: Path) -> None:
    replies = iter([Reply(status=500, headers={"retry-after-ms": "1"}), "fine"])
    async with (
        ScriptedModelServer(lambda body: next(replies)) as engine,
        leased_attempt(engine, tmp_path) as leased,
        client(leased.context.gateway or "", retries=1) as c,
    ):
        with leased.active():
            emit_reward(0.5, call=await c.messages.create(**ASK))
        record, verdicts = await leased.finish()
    failed, good = record.calls
    assert (failed.retry, good.retry, failed.span_id) == (0, 1, good.span_id)
    assert verdicts[1].kind == "exact" and record.rewards[0].span_id == good.span_id


async def test_another_attempts_key_is_refused(instrumented: None, tmp_path: Path) -> None:
    async with ScriptedModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        key, leased.context.attempt_id, leased.context.key = leased.context.key or "", "at-other", "agl-other"
        async with client(leased.context.gateway or "", key) as c:
            with leased.active(), pytest.raises(anthropic.ConflictError, match="at-other"):
                await c.messages.create(**ASK)


async def test_errors_have_the_sdks_types(capturing: None, tmp_path: Path) -> None:
    async with ScriptedModelServer(max_model_len=9) as engine, leased_attempt(engine, tmp_path) as leased:
        async with client(leased.context.gateway or "", leased.context.key or "") as c:
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await c.messages.create(**ASK)
            with pytest.raises(anthropic.BadRequestError, match="no thinking budget"):
                await c.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 1024})
            assert (await c.messages.count_tokens(model="policy", messages=[USER])).input_tokens > 9
        async with client(leased.context.gateway or "", "sk-users-own") as c:
            with pytest.raises(anthropic.AuthenticationError):
                await c.messages.create(**ASK)
        record, _ = await leased.finish()
    assert [call.masked for call in record.calls] == ["over-length"]


async def test_other_endpoints_see_the_request_unchanged(
    instrumented: None, server: ScriptedModelServer
) -> None:
    recording = Recording("far", "http://127.0.0.1:9/v1")
    server.reply = script
    async with client(server.url, "users-own") as c:
        with recording.active():
            async with c.messages.stream(**ASK) as stream:
                await stream.until_done()
    headers = server.log[0].headers
    assert "users-own" in (
        headers.get("x-api-key"),
        headers.get("authorization", "").removeprefix("Bearer "),
    ) and not [name for name in headers if name.startswith("x-agl")]
    said = recording.calls[0].attributes[semconv.OUTPUT_MESSAGES]
    assert json.loads(said)[0]["parts"][-1] == {
        "type": "tool_call",
        "id": "call_0",
        "name": "add",
        "arguments": '{"x": "1 + 1"}',
    }
    async with client(server.url) as c:
        await c.messages.create(**ASK)
    assert len(recording.calls) == 1, "outside of an attempt nothing is recorded"


def test_nothing_is_left_behind(capturing: None) -> None:
    before = [vars(owner)[name] for owner, name in OWNERS]
    AnthropicInstrumentor().instrument()
    assert all(vars(owner)[name] is not was for (owner, name), was in zip(OWNERS, before, strict=True))
    AnthropicInstrumentor().uninstrument()
    assert all(vars(owner)[name] is was for (owner, name), was in zip(OWNERS, before, strict=True))


# ------------------------------------------------------------------------------------------------------ fuzz
CALLS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.dictionaries(st.text(max_size=5), st.text(max_size=60)))
)


@given(st.text(max_size=150), st.text(max_size=100), CALLS)
@settings(deadline=None, max_examples=examples(40))
def test_what_the_sdk_accumulates_is_the_whole_message(text: str, thought: str, calls: list[Any]) -> None:
    tools = [
        {"id": f"t{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for n, (name, given) in enumerate(calls)
    ]
    said = {"role": "assistant", "content": text or None, "reasoning_content": thought, "tool_calls": tools}
    choice = {
        "index": 0,
        "message": said,
        "finish_reason": "tool_calls" if tools else "stop",
        "token_ids": [5],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    answer = MESSAGES.answer({}, {"id": "m1", "model": "m", "choices": [choice], "usage": usage})
    raw = b"".join(MESSAGES.events(answer))
    reply = http.Response(200, content=raw, headers={"Content-Type": "text/event-stream"})
    transport = http.Client(transport=http.MockTransport(lambda request: reply))
    with (
        anthropic.Anthropic(base_url="http://engine", api_key="k", http_client=transport) as c,
        c.messages.stream(**ASK) as stream,
    ):
        message = stream.get_final_message().to_dict()
    assert message["content"] == answer["content"] and message["token_ids"] == [5]
    assert message["usage"]["output_tokens"] == 1 and message["stop_reason"] == answer["stop_reason"]


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer(ids="always") as server:
        yield server
