"""Wire layer, gateway, store and credit agree on what was sampled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from contract.capturing import leased_attempt
from contract.model_server import Exchange, ModelServer, Reply

from agentlightning import semconv
from agentlightning.capture.emit import emit_reward
from agentlightning.credit.eligibility import untrainable_reasons
from agentlightning.credit.rollout_reward import failure_of
from agentlightning.credit.verdicts import matches_call, verdicts
from agentlightning.keys import CONTEXT_KEY
from agentlightning.types import Recipe
from agentlightning.types.tokens import tokens_digest

pytestmark = pytest.mark.usefixtures("capturing")
ASK: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


class Stuck(ModelServer):
    """Sends the first words of each answer, and then nothing."""

    async def _send(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in self.parts(exchange)[:4]:
            await response.write(f"data: {json.dumps(part)}\n\n".encode())
        await asyncio.Event().wait()
        return response


async def test_every_path_is_exact(tmp_path: Path) -> None:
    async with ModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        gateway = leased.context.gateway
        async with openai.AsyncOpenAI(base_url=gateway, api_key=CONTEXT_KEY) as client:
            with leased.active():
                await client.chat.completions.create(**ASK)
                async for _ in await client.chat.completions.create(**ASK, stream=True):
                    pass
                await client.completions.create(model="policy", prompt="hi")
                async for _ in await client.completions.create(model="policy", prompt="hi", stream=True):
                    pass
        _, verdicts = await leased.finish()
    assert [verdict.kind for verdict in verdicts] == ["exact"] * 4, verdicts


@pytest.mark.parametrize("stream", [False, True])
async def test_each_of_several_choices_meets_its_own_record(tmp_path: Path, stream: bool) -> None:
    said = ["one", "two two", "three three three"]
    async with ModelServer(lambda body: said) as engine, leased_attempt(engine, tmp_path) as leased:
        async with openai.AsyncOpenAI(base_url=leased.context.gateway, api_key=CONTEXT_KEY) as client:
            with leased.active():
                answer: Any = await client.chat.completions.create(**ASK, n=3, stream=stream)
                if stream:
                    async for _ in answer:
                        pass
        record, _ = await leased.finish()
    assert len(record.calls) == len(record.wire) == 3
    for choice, call in enumerate(record.calls):
        assert call.prompt_ids is not None and call.response_ids is not None
        (span,) = [span for span in record.wire if matches_call(span, call)]
        digest = tokens_digest(call.prompt_ids, call.response_ids)
        assert span.attributes[semconv.TOKENS_DIGEST] == digest
        assert call.response_ids == engine.log[0].answers[choice].ids


@pytest.mark.parametrize("way", ["the engine goes on", "the engine has ended", "replayed"])
@pytest.mark.parametrize("left", ["open", "closed", "cancelled"])
async def test_a_stream_that_its_agent_breaks_off_is_cancelled_whoever_is_first(
    tmp_path: Path, way: str, left: str
) -> None:
    """The agent reads one piece. Whether the gateway had all of the answer by then decides nothing."""
    kind = Stuck if way == "the engine goes on" else ModelServer
    async with (
        kind(lambda body: "word " * 20) as engine,
        leased_attempt(engine, tmp_path, stream_ids=way != "replayed") as leased,
    ):
        kept: list[Any] = []  # references that outlive the attempt
        async with openai.AsyncOpenAI(base_url=leased.context.gateway, api_key=CONTEXT_KEY) as client:

            async def agent() -> None:
                stream: Any = await client.chat.completions.create(**ASK, stream=True)
                kept.append(stream)
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        break
                if way != "the engine goes on":
                    while not await leased.recorded():
                        await asyncio.sleep(0)
                if left == "closed":
                    await stream.close()
                elif left == "cancelled":
                    asyncio.current_task().cancel()  # type: ignore[union-attr]
                    await stream.__anext__()

            with leased.active():
                await asyncio.gather(agent(), return_exceptions=True)
                record, _ = await leased.finish()
            for stream in kept:
                await stream.close()
    (call,) = record.calls
    assert call.status == ("cancelled" if way == "the engine goes on" else "ok")
    assert call.response_ids
    reasons = untrainable_reasons(record, verdicts(record), Recipe(name="grpo"), version=None)
    assert reasons == {call.call_id: "cancelled"}
    assert failure_of(record) == "no-reward", "the agent had the beginning of an answer"


async def test_a_retried_call_keeps_its_reward_and_its_traceparent(tmp_path: Path) -> None:
    replies = iter([Reply(status=500, headers={"retry-after-ms": "1"}), "fine"])
    async with (
        ModelServer(lambda body: next(replies)) as engine,
        leased_attempt(engine, tmp_path) as leased,
    ):
        gateway = leased.context.gateway
        async with openai.AsyncOpenAI(base_url=gateway, api_key=CONTEXT_KEY) as client:
            with leased.active():
                answer = await client.chat.completions.create(**ASK)
                emit_reward(0.5, call=answer)
        record, _ = await leased.finish()
    failed, good = record.calls
    assert (failed.status, good.status) == ("error", "ok")
    assert (failed.retry, good.retry) == (0, 1)
    assert failed.span_id == good.span_id == leased.calls[0].span_id
    (reward,) = record.rewards
    assert (reward.value, reward.span_id, reward.final) == (0.5, good.span_id, False)


async def test_another_attempts_key_is_refused(tmp_path: Path) -> None:
    async with ModelServer() as engine, leased_attempt(engine, tmp_path) as leased:
        other = leased.context.key or ""
        leased.context.attempt_id, leased.context.key = "at-somebody-else", "agl-own"
        client = openai.AsyncOpenAI(base_url=leased.context.gateway, api_key=other, max_retries=0)
        async with client:
            with leased.active(), pytest.raises(openai.ConflictError, match="another rollout"):
                await client.chat.completions.create(**ASK)
    assert engine.log == []
