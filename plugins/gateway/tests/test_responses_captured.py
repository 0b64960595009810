"""The Responses API on the wire: the same span, headers and digest as chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agl_testing import Reply, ScriptedModelServer, tool_call
from agl_testing.contract.recording import Recording, assert_exact
from agl_testing.contract.through_gateway import leased_attempt
from core.capture.conftest import capturing as capturing
from pydantic import BaseModel

from agentlightning import semconv
from agentlightning.capture import COUNTS
from agentlightning.capture.context import tagged
from agentlightning.capture.emit import emit_reward
from agentlightning.capture.sdk_call import RETRIES
from agentlightning.keys import CONTEXT_KEY

pytestmark = pytest.mark.usefixtures("capturing")
ASK: dict[str, Any] = {"model": "policy", "input": "hi"}


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
def recording(server: ScriptedModelServer) -> Recording:
    return Recording("wire", server.url)


class Answer(BaseModel):
    value: int


def client(url: str, key: str = CONTEXT_KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=key)


async def every_path(c: openai.AsyncOpenAI) -> None:
    """Six ways to ask for the same."""
    await c.responses.create(**ASK)
    async for _ in await c.responses.create(**ASK, stream=True):
        pass
    assert (await c.responses.parse(**ASK, text_format=Answer)).output_parsed == Answer(value=3)
    async with c.responses.stream(**ASK) as stream:
        await stream.until_done()
    (await c.responses.with_raw_response.create(**ASK)).parse()
    async with c.responses.with_streaming_response.create(**ASK, stream=True) as raw:
        async for _ in await raw.parse():
            pass


async def test_every_path_is_exact(tmp_path: Path) -> None:
    async with (
        ScriptedModelServer(lambda body: '{"value": 3}') as engine,
        leased_attempt(engine, tmp_path) as leased,
        client(leased.context.gateway or "") as c,
    ):
        with leased.active(), tagged(agent="solver"):
            await every_path(c)
        record, verdicts = await leased.finish()
    assert [verdict.kind for verdict in verdicts] == ["exact"] * 6, verdicts
    assert {call.tags["agent"] for call in record.calls} == {"solver"}
    assert {call.edited["api"] for call in record.calls} == {"responses"}
    assert COUNTS.snapshot() == {}


async def test_sync_too(server: ScriptedModelServer, recording: Recording) -> None:
    def ask() -> None:
        with openai.OpenAI(base_url=server.url, api_key=CONTEXT_KEY) as c:
            c.responses.create(**ASK)
            with c.responses.with_streaming_response.create(**ASK) as raw:
                raw.parse()
            assert len(list(c.responses.create(**ASK, stream=True))) > 3

    with recording.active():
        await asyncio.to_thread(ask)
    assert_exact(recording, server.log)
    assert len(recording.calls) == 3


async def test_identity_goes_to_the_gateway_only(server: ScriptedModelServer, recording: Recording) -> None:
    async with client(server.url) as c:
        with recording.active():
            await c.responses.create(**ASK)
    headers = server.log[0].headers
    (call,) = recording.calls
    assert headers["authorization"] == f"Bearer {recording.context.key}"
    assert headers["traceparent"].split("-")[2] == call.span_id
    elsewhere = Recording("elsewhere", "http://127.0.0.1:9/v1")
    async with client(server.url, "users-own") as c:
        with elsewhere.active():
            await c.responses.create(**ASK)
    assert server.log[1].headers["authorization"] == "Bearer users-own"
    assert "traceparent" not in server.log[1].headers
    (call,) = elsewhere.calls
    assert call.attributes[semconv.INPUT_MESSAGES] == '"hi"'
    assert '"content": "ok"' in call.attributes[semconv.OUTPUT_MESSAGES]


async def test_tool_calls_of_another_endpoint_are_told(server: ScriptedModelServer) -> None:
    server.reply = lambda body: tool_call("add", '{"a":  1}', content="see")
    recording = Recording("far", gateway=None)
    async with client(server.url) as c:
        with recording.active():
            async for _ in await c.responses.create(**ASK, stream=True):
                pass
    said = recording.calls[0].attributes[semconv.OUTPUT_MESSAGES]
    assert '"name": "add"' in said and "see" in said
    assert_exact(recording, server.log)


async def test_a_retried_call_is_one_span(tmp_path: Path) -> None:
    replies = iter([Reply(status=500, headers={"retry-after-ms": "1"}), "fine"])
    async with (
        ScriptedModelServer(lambda body: next(replies)) as engine,
        leased_attempt(engine, tmp_path) as leased,
        client(leased.context.gateway or "") as c,
    ):
        with leased.active():
            emit_reward(0.5, call=await c.responses.create(**ASK))
        record, _ = await leased.finish()
    failed, good = record.calls
    assert (failed.retry, good.retry, failed.span_id) == (0, 1, good.span_id)
    assert leased.calls[0].attributes[RETRIES] == 1
    (reward,) = record.rewards
    assert (reward.span_id, reward.final) == (good.span_id, False)


async def test_a_raw_body_that_is_never_parsed_is_counted(
    server: ScriptedModelServer, recording: Recording
) -> None:
    async with client(server.url) as c:
        with recording.active():
            async with c.responses.with_streaming_response.create(**ASK) as raw:
                await raw.read()
            assert len(recording.calls) == 1
    assert COUNTS.snapshot() == {"wire-not-read": 1}


async def test_what_is_no_model_call_is_left_alone(server: ScriptedModelServer, recording: Recording) -> None:
    async with client(server.url) as c:
        with recording.active(), pytest.raises(openai.NotFoundError):
            await c.responses.retrieve("resp_1")
    assert recording.spans == []
