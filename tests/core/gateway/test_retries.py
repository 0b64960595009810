"""The SDK's own retries through the gateway: one call is trained, the others are superseded."""

import asyncio
import importlib

import pytest
from aiohttp import web

pytest.importorskip("openai")
from openai import AsyncOpenAI

from agentlightning.credit.assign import assign
from agentlightning.gateway import SamplingPolicy, Upstream
from agentlightning.recipes import GRPO
from agentlightning.types import Record, Reward, Rollout, RolloutStatus

from .conftest import chunks, events

MESSAGES = [{"role": "user", "content": "hi"}]
TRACE = "a" * 32


def span(name):
    """What the wire layer adds to a request; the SDK sends it with every retry."""
    return {"traceparent": f"00-{TRACE}-{name * 16}-01"}


@pytest.fixture
async def client(world):
    world.gateway.policy_sampling("default", SamplingPolicy())
    async with AsyncOpenAI(base_url=world.url, api_key=world.key, max_retries=2) as client:
        yield client


def failing(world, *statuses):
    """The engine answers the first requests with ``statuses``; retries are asked for at once."""
    waiting = list(statuses)

    async def answer(request, body):
        if waiting:
            return web.json_response(
                {"error": {"message": "busy"}}, status=waiting.pop(0), headers={"retry-after-ms": "1"}
            )
        return await world.engine.default(request, body)

    world.engine.answer = answer


def ledger(world):
    """The account of the attempt, and which of its calls were trained."""
    rollout = Rollout(rollout_id="ro-1", status=RolloutStatus.SUCCEEDED, group_id="g")
    record = Record(rollout=rollout, calls=world.store.calls, rewards=[Reward(value=1.0)])
    batch = assign([record], GRPO(filter_zero_std_groups=False))
    (account,) = batch.ledgers
    assert account.sums and account.made == len(world.store.calls)
    return account.left_out, [s.call_id for row in batch.rows for s in row.segments if s.trained]


def impatient(client, until):
    """``client`` hangs up on its first request as soon as ``until`` is set, as its own timeout would."""
    http, first = client._client, [True]
    send = http.send

    async def sending(request, **options):
        if not first:
            return await send(request, **options)
        first.clear()
        asking = asyncio.create_task(send(request, **options))
        await until.wait()
        asking.cancel()
        library = importlib.import_module(
            type(request).__module__.partition(".")[0]
        )  # httpx, or its successor
        raise library.ReadTimeout("the agent's patience is over", request=request)

    http.send = sending


def seeds(world):
    return [body["seed"] for body in world.engine.bodies]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("statuses", [[500], [503, 429], [408, 409]])
async def test_an_engine_that_fails_and_then_answers(world, client, stream, statuses):
    failing(world, *statuses)
    got = await client.chat.completions.create(
        model="m", messages=MESSAGES, extra_headers=span("1"), stream=stream
    )
    if stream:
        assert [c async for c in got][-1].choices[0].finish_reason == "stop"
    n = len(statuses)
    calls = world.store.calls
    assert [(c.status, c.retry) for c in calls] == [("error", i) for i in range(n)] + [("ok", n)]
    assert len({*seeds(world)}) == 1, "a retry is the same call"
    await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=span("2"))
    assert seeds(world)[-1] != seeds(world)[0]
    assert ledger(world) == ({"superseded": n}, [calls[n].call_id, calls[n + 1].call_id])


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_that_gives_up_waiting_and_asks_again(world, client, stream):
    """The SDK's timeout hangs up; the first call is still at the engine when the retry arrives."""
    hanging = asyncio.Event()

    async def answer(request, body):
        if len(world.engine.bodies) == 1:
            hanging.set()
            await asyncio.Event().wait()
        return await world.engine.default(request, body)

    world.engine.answer = answer
    impatient(client, hanging)
    got = await client.chat.completions.create(
        model="m", messages=MESSAGES, extra_headers=span("1"), stream=stream
    )
    if stream:
        assert [c async for c in got]
    await world.engine.cancelled.wait()
    while len(world.store.calls) < 2:
        await world.metrics()
    first, second = sorted(world.store.calls, key=lambda c: c.retry)
    assert (first.status, first.retry, second.status, second.retry) == ("cancelled", 0, "ok", 1)
    assert len({*seeds(world)}) == 1
    assert ledger(world) == ({"superseded": 1}, [second.call_id])


async def test_an_answer_that_was_recorded_but_never_arrived_is_superseded(world, client):
    """The record is committed, the line breaks, the SDK asks again: one of two equal answers is trained."""
    world.store.hold = asyncio.Event()
    impatient(client, world.store.waiting)
    asking = asyncio.create_task(
        client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=span("1"))
    )
    while len(world.engine.bodies) < 2:
        await world.metrics()
    world.store.hold.set()
    await asking
    while len(world.store.calls) < 2:
        await world.metrics()
    assert [c.status for c in world.store.calls] == ["ok", "ok"]
    assert len({*seeds(world)}) == 1
    last = max(world.store.calls, key=lambda c: c.retry)
    assert ledger(world) == ({"superseded": 1}, [last.call_id])


async def test_retries_of_all_choices(world, client):
    failing(world, 500)
    await client.chat.completions.create(model="m", messages=MESSAGES, n=2, extra_headers=span("1"))
    out, trained = ledger(world)
    assert out == {"superseded": 1} and len(trained) == 2
    assert [(c.choice, c.retry) for c in world.store.calls] == [(0, 0), (0, 1), (1, 1)]


async def test_without_a_trace_the_failed_call_is_out_by_itself(world, client):
    """No wire layer, no span: the gateway cannot tell a retry's call from another by its span. What failed is
    out as an error, and the retry, known by its count and its very body, has the same seed.
    """
    failing(world, 500)
    await client.chat.completions.create(model="m", messages=MESSAGES)
    await client.chat.completions.create(model="m", messages=MESSAGES)
    first, second, third = seeds(world)
    assert first == second != third
    calls = world.store.calls
    assert ledger(world) == ({"error": 1}, [calls[1].call_id, calls[2].call_id])


async def test_parallel_calls_without_a_trace_do_not_share_a_seed(world):
    world.gateway.policy_sampling("default", SamplingPolicy())
    again = {"x-stainless-retry-count": "1"}
    await world.post({"messages": [{"role": "user", "content": "a"}]})
    await world.post({"messages": [{"role": "user", "content": "b"}]}, headers=again)
    assert len({*seeds(world)}) == 2, "another body is no retry of this one"


async def test_a_store_that_is_away_for_a_moment(world, client):
    """The answer is withheld with 503 and Retry-After; the SDK comes back, and one record is there."""
    fail = [RuntimeError("away")]
    add_calls = world.store.add_calls

    async def once(calls, *, fence=None):
        if fail:
            raise fail.pop()
        await add_calls(calls, fence=fence)

    world.store.add_calls = once
    await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=span("1"))
    (call,) = world.store.calls
    assert (call.retry, call.status) == (1, "ok") and len({*seeds(world)}) == 1
    assert (await world.metrics())["lost_records"] == 1
    assert ledger(world) == ({}, [call.call_id])


async def test_frozen_agents_and_evaluation_keep_their_own_on_a_retry(world, client):
    world.gateway.add_route(Upstream(policy="judge", url=world.engine.url, model="big", trainable=False))
    failing(world, 500)
    client = client.with_options(api_key=world.open("2", policies={"judge": "judge"}))
    await client.chat.completions.create(model="judge", messages=MESSAGES, temperature=0.2, seed=5)
    assert [(b["temperature"], b["seed"]) for b in world.engine.bodies] == [(0.2, 5)] * 2
    assert [c.selected for c in world.store.calls] == [False, False]


async def test_a_broken_stream_is_not_asked_again(world, client):
    async def broken(request, body):
        return await world.engine.stream(request, chunks(body)[:2], done=False)

    world.engine.answer = broken
    got = await world.post({"stream": True}, headers=span("1"))
    assert "error" in events(got.raw)[-1]
    assert ledger(world) == ({"error": 1}, [])
