"""Who is calling reaches the gateway, and the attempt's key reaches nobody else."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import unquote

import openai
import pytest
from contract.capturing import Recording
from contract.model_server import ModelServer

from agentlightning import semconv
from agentlightning.capture.context import tagged
from agentlightning.capture.identity import agent_tags
from agentlightning.capture.sdk_call import is_gateway
from agentlightning.types import LLM

pytestmark = pytest.mark.usefixtures("capturing")
ASK: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


def client(url: str, key: Any = "agl-context", **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=key, **options)


@pytest.mark.parametrize("key", ["agl-context", "sk-of-the-user", "agl-key-wire"])
async def test_the_attempts_key_goes_to_the_gateway(
    server: ModelServer, recording: Recording, key: str
) -> None:
    async with client(server.url, key) as c:
        with recording.active():
            await c.chat.completions.create(**ASK)
    (exchange,) = server.log
    assert exchange.headers["authorization"] == "Bearer agl-key-wire"
    assert exchange.headers[semconv.HEADER_ATTEMPT] == "at-wire"
    (call,) = recording.calls
    assert exchange.headers["traceparent"] == f"00-{call.trace_id}-{call.span_id}-01"


async def test_a_key_that_is_fetched_is_replaced_too(server: ModelServer, recording: Recording) -> None:
    async def fetch() -> str:
        return "sk-fetched"

    async with client(server.url, fetch) as c:
        with recording.active():
            await c.chat.completions.create(**ASK)
    assert server.log[0].headers["authorization"] == "Bearer agl-key-wire"


async def test_another_attempts_key_is_left_for_the_gateway_to_refuse(
    server: ModelServer, recording: Recording
) -> None:
    async with client(server.url, "agl-of-another") as c:
        with recording.active():
            await c.chat.completions.create(**ASK)
            await c.chat.completions.create(**ASK, extra_headers={"authorization": "Bearer agl-third"})
    first, second = server.log
    assert first.headers["authorization"] == "Bearer agl-of-another"
    assert second.headers["authorization"] == "Bearer agl-third"
    assert first.headers[semconv.HEADER_ATTEMPT] == "at-wire"


async def test_without_a_key_the_users_stays(server: ModelServer, recording: Recording) -> None:
    recording.context.key = None
    async with client(server.url, "sk-user") as c:
        with recording.active():
            await c.chat.completions.create(**ASK)
    assert server.log[0].headers["authorization"] == "Bearer sk-user"


async def test_nothing_of_ours_goes_elsewhere(server: ModelServer) -> None:
    async with ModelServer() as vendor:
        recording = Recording("split", server.url)
        async with client(vendor.url, "sk-user") as c, client(server.url) as g:
            with recording.active(), tagged(agent="spy"):
                await c.chat.completions.create(**ASK)
                await g.post(f"{vendor.url}/chat/completions", body=ASK, cast_to=object)  # an absolute URL
    for exchange in vendor.log:
        assert not [name for name in exchange.headers if name.startswith("x-agl") or name == "traceparent"]
        assert "agl-key" not in str(exchange.headers)
        assert exchange.body == ASK
    assert len(vendor.log) == 2 and not server.log


@pytest.mark.parametrize(
    ("endpoint", "gateway", "same"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1", True),
        ("http://localhost:8000/v1/", "http://127.0.0.1:8000/v1", True),
        ("HTTP://Gateway.local/v1", "http://gateway.local:80/v1/", True),
        ("http://127.0.0.1:8001/v1/", "http://127.0.0.1:8000/v1", False),
        ("https://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1", False),
        ("http://127.0.0.1:8000/v12/", "http://127.0.0.1:8000/v1", False),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", False),
        ("http://127.0.0.1:8000@evil.example/v1", "http://127.0.0.1:8000/v1", False),
        ("http://127.0.0.1:8000/v1", None, False),
    ],
)
def test_what_is_the_gateway(endpoint: str, gateway: str | None, same: bool) -> None:
    assert is_gateway(endpoint, gateway) is same


async def test_tags_in_order_of_strength(server: ModelServer, recording: Recording) -> None:
    recording.context.tags = {"side": "day", "agent": "weakest", "node": "n"}
    recording.context.policies = {"Zoë": "wolves"}
    async with client(server.url) as c:
        with recording.active(), tagged(agent="Zoë", turn="3"), agent_tags(agent="adapter", phase="adapter"):
            await c.chat.completions.create(**ASK)
    headers = server.log[0].headers
    tags = json.loads(unquote(headers[semconv.HEADER_TAGS]))
    assert tags == {
        "side": "day",
        "agent": "Zoë",
        "node": "n",
        "phase": "adapter",
        "role": "Zoë",
        "turn": "3",
    }
    assert headers[semconv.HEADER_POLICY] == "wolves"
    recorded = recording.calls[0].attributes
    assert {k.removeprefix("agl.tag."): v for k, v in recorded.items() if k.startswith("agl.tag.")} == tags


async def test_ids_are_asked_for_where_the_context_says_so() -> None:
    async with ModelServer(ids="asked") as server, client(server.url, "sk-user") as c:
        recording = Recording("asking", None)
        with recording.active():
            await c.chat.completions.create(**ASK)
            asks = LLM(endpoint=server.url, model="policy", sampling_parameters={"return_token_ids": True})
            recording.context.resources = {"llm": asks}
            await c.chat.completions.create(**ASK)
            await c.completions.create(model="policy", prompt="hi")
    silent, chat, text = recording.calls
    assert semconv.PROMPT_IDS not in silent.attributes and server.log[0].body == ASK
    assert {semconv.PROMPT_IDS, semconv.LOGPROBS} <= chat.attributes.keys()
    assert {semconv.PROMPT_IDS, semconv.LOGPROBS} <= text.attributes.keys()


async def test_the_callers_options_are_not_changed(server: ModelServer, recording: Recording) -> None:
    headers, body = {"x-mine": "1"}, {"top_k": 5}
    async with client(server.url) as c:
        with recording.active():
            await c.chat.completions.create(**ASK, extra_headers=headers, extra_body=body)
    assert headers == {"x-mine": "1"} and body == {"top_k": 5}
    assert server.log[0].headers["x-mine"] == "1" and server.log[0].body["top_k"] == 5


async def test_one_client_serves_many_attempts_at_once(server: ModelServer) -> None:
    recordings = [Recording(str(number), server.url) for number in range(32)]
    async with client(server.url) as c:

        async def work(recording: Recording) -> None:
            with recording.active():
                name = recording.context.attempt_id
                messages: Any = [{"role": "user", "content": name}]
                await c.chat.completions.create(model="policy", messages=messages)

        await asyncio.gather(*(work(recording) for recording in recordings))
    for exchange in server.log:
        name = exchange.body["messages"][0]["content"]
        assert exchange.headers[semconv.HEADER_ATTEMPT] == name
        assert exchange.headers["authorization"] == f"Bearer agl-key-{name[3:]}"
    assert all(len(recording.calls) == 1 for recording in recordings)
