"""One client on several event loops, and one SSL context for many clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from contract.capturing import Recording, assert_exact
from contract.model_server import ModelServer

from agentlightning.capture import COUNTS, sdk

pytestmark = pytest.mark.usefixtures("capturing")
ASK: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def threaded() -> Iterator[ModelServer]:
    """A server on a loop of its own, so that tests can run loops after one another."""
    with ModelServer(lambda body: "a b c", ids="always") as server:
        yield server


async def ask(client: Any, stream: bool) -> None:
    answer = await client.chat.completions.create(**ASK, stream=stream)
    if stream:
        async for _ in answer:
            pass


@pytest.mark.parametrize("stream", [False, True])
def test_an_async_client_serves_one_loop_after_another(threaded: ModelServer, stream: bool) -> None:
    client = openai.AsyncOpenAI(base_url=threaded.url, api_key="own", max_retries=0)
    recording = Recording("loops", threaded.url)

    async def agent(last: bool) -> None:
        await ask(client, stream)
        await ask(client, stream)
        if last:
            await client.close()

    with recording.active(), asyncio.Runner() as home:
        home.run(agent(False))
        for _ in range(5):
            other = asyncio.new_event_loop()  # asyncio.run in a thread of the agent's, say
            other.run_until_complete(agent(False))
            other.close()
        home.run(agent(True))
    assert len(threaded.log) == 14
    assert_exact(recording, threaded.log)
    assert COUNTS.snapshot() == {}


def test_a_client_that_cannot_be_copied_says_what_to_do(
    threaded: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = openai.AsyncOpenAI(
        base_url=threaded.url, api_key="own", max_retries=0, http_client=openai.DefaultAsyncHttpxClient()
    )
    recording = Recording("own", threaded.url)
    sdk._warn_once.cache_clear()
    with recording.active(), asyncio.Runner() as home, caplog.at_level(logging.WARNING):
        home.run(ask(client, False))
        others = [asyncio.new_event_loop() for _ in range(2)]
        for other in others:
            with contextlib.suppress(openai.APIConnectionError, RuntimeError):
                other.run_until_complete(ask(client, False))
        home.run(client.close())
        for other in others:
            other.run_until_complete(asyncio.sleep(0))
            other.close()
    assert COUNTS.snapshot()["client-on-another-loop"] == 2
    [said] = [r.getMessage() for r in caplog.records if r.name == sdk.__name__]
    assert "inside the agent" in said and "AsyncOpenAI" in said


async def test_clients_of_rollouts_share_one_ssl_context() -> None:
    def context(client: Any) -> Any:
        return client._client._transport._pool._ssl_context

    kinds = (openai.AsyncOpenAI, openai.AsyncOpenAI, openai.OpenAI)
    with Recording("tls", None).active():
        inside = [kind(api_key="x") for kind in kinds]
        custom = openai.AsyncOpenAI(api_key="x", http_client=openai.DefaultAsyncHttpxClient(verify=False))
    outside = openai.AsyncOpenAI(api_key="x")
    assert len({id(context(client)) for client in inside}) == 1
    assert len({id(context(client)) for client in (inside[0], custom, outside)}) == 3
    for client in (*inside, custom, outside):
        closing = client.close()
        if closing is not None:
            await closing
