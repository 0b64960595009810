"""Attempts: opened, closed, found in the store, many at once."""

import asyncio
import json

import aiohttp
import pytest
from agl_gateway.apis.history import History
from aiohttp import web
from core.gateway.conftest import chunks, whole

from agentlightning.gateway.attempts import OpenAttempts
from agentlightning.gateway.settings import CallSection
from agentlightning.keys import Claims
from agentlightning.types import AttemptStatus, Call


async def test_a_closed_attempts_key_is_refused_and_counted(world):
    assert (await world.post()).status == 200
    await world.gateway.close_attempt("at-1")
    got = await world.post()
    assert got.status == 409 and json.loads(got.raw)["error"]["code"] == "attempt-ended"
    assert got.headers["x-should-retry"] == "false"
    assert world.store.counted["refused", "attempt-ended", "at-1"] == 1
    assert len(world.store.calls) == 1 and (await world.metrics())["attempts"] == 0


async def test_closing_stops_calls_under_way(world):
    async def answer(request, body):
        await asyncio.Event().wait()

    world.engine.answer = answer
    asking = asyncio.create_task(world.post())
    await world.engine.arrived.wait()
    await world.gateway.close_attempt("at-1")
    (call,) = world.store.calls
    assert (call.status, call.error) == ("cancelled", "the attempt was closed")
    assert (await asking).status == 409
    await world.engine.cancelled.wait()


async def test_closing_ends_a_stream_under_way(world):
    async def answer(request, body):
        return await world.engine.stream(request, chunks(body), pause_after=2, gate=asyncio.Event())

    world.engine.answer = answer
    body = {"model": "m", "messages": [], "stream": True}
    headers = {"Authorization": f"Bearer {world.key}"}
    async with world.session.post(world.url + "/chat/completions", json=body, headers=headers) as response:
        seen = b""
        while b"there" not in seen:
            seen += await response.content.readany()
        await world.gateway.close_attempt("at-1")
        assert world.store.calls[0].status == "cancelled"
        assert world.store.calls[0].response["content"] == "hello there"
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_closing_with_grace_lets_calls_finish(world):
    go = asyncio.Event()

    async def answer(request, body):
        await go.wait()
        return web.json_response(whole(body))

    world.engine.answer = answer
    asking = asyncio.create_task(world.post())
    await world.engine.arrived.wait()
    closing = asyncio.create_task(world.gateway.close_attempt("at-1", grace=10))
    await asyncio.sleep(0)
    go.set()
    assert (await asking).status == 200
    await closing
    assert world.store.calls[0].status == "ok"


async def test_closing_waits_for_a_record_being_committed(world):
    world.store.hold = asyncio.Event()
    asking = asyncio.create_task(world.post())
    await world.store.waiting.wait()
    closing = asyncio.create_task(world.gateway.close_attempt("at-1"))
    done, _ = await asyncio.wait({closing}, timeout=0.05)
    assert not done
    world.store.hold.set()
    await closing
    assert [c.status for c in world.store.calls] == ["ok"]
    assert (await asking).status == 409


async def test_an_attempt_that_ends_while_its_answers_are_read_calls_no_more(world):
    reading, go = asyncio.Event(), asyncio.Event()
    query_calls = world.store.query_calls

    async def slowly(rollout_id, attempt_id="latest"):
        reading.set()
        await go.wait()
        return await query_calls(rollout_id, attempt_id)

    answer = await world.post({"messages": None, "input": "hi"}, path="/responses")
    history = world.gateway._attempts._open["at-1"].part(History)
    history._drop(name := json.loads(answer.raw)["id"])
    world.store.query_calls = slowly
    more = {"messages": None, "input": "more", "previous_response_id": name}
    asking = asyncio.create_task(world.post(more, path="/responses"))
    await reading.wait()
    await world.gateway.close_attempt("at-1")
    go.set()
    got = await asking
    assert (got.status, json.loads(got.raw)["error"]["code"]) == (409, "attempt-ended")
    assert len(world.store.calls) == len(world.engine.bodies) == 1


async def test_closing_what_is_not_open_is_fine(world):
    await world.gateway.close_attempt("at-unknown")


async def test_opening_twice_is_an_error(world):
    with pytest.raises(ValueError, match="open already"):
        world.open("1")


async def test_an_attempt_opened_elsewhere_is_read_once(world):
    world.store.put("ro-9", "at-9", mode="val", seed=5, metadata={"greedy": True})
    world.store.calls.append(Call(call_id="c", rollout_id="ro-9", attempt_id="at-9", sequence=4))
    key = world.keys.mint("ro-9", "at-9", fence=3)
    answers = await asyncio.gather(*(world.post({"temperature": 0.5}, key=key) for _ in range(8)))
    assert {a.status for a in answers} == {200} and world.store.lookups == 1
    calls = world.store.calls[1:]
    assert sorted(c.sequence for c in calls) == list(range(5, 13))
    assert {c.sampling["temperature"] for c in calls} == {0.0}
    assert len({c.sampling["seed"] for c in calls}) == 8


@pytest.mark.parametrize("status", [AttemptStatus.SUCCEEDED, AttemptStatus.FAILED, AttemptStatus.TIMEOUT])
async def test_a_finished_attempt_found_in_the_store_is_refused(world, status):
    world.store.put("ro-9", "at-9", status=status)
    for _ in range(2):
        assert (await world.post(key=world.keys.mint("ro-9", "at-9"))).status == 409
    assert world.store.lookups == 1 and not world.engine.bodies


async def test_an_unknown_attempt_is_refused(world):
    world.store.put("ro-8", "at-8")
    for rollout, attempt in (("ro-9", "at-9"), ("ro-8", "at-9")):
        got = await world.post(key=world.keys.mint(rollout, attempt))
        assert got.status == 409 and json.loads(got.raw)["error"]["code"] == "unknown-attempt"


async def test_foreign_attempts_are_bounded(store, world, monkeypatch):
    monkeypatch.setattr("agentlightning.gateway.attempts.MAX_LOADED", 2)
    attempts = OpenAttempts(store, world.keys, CallSection())
    for i in range(4):
        store.put(f"r{i}", f"a{i}")
        await attempts.get(Claims("", f"r{i}", f"a{i}", 1, 0.0))
    assert list(attempts._loaded) == ["a2", "a3"]


async def test_many_attempts_at_once_are_kept_apart(world):
    async def answer(request, body):
        await asyncio.sleep(0)
        who = body["messages"][0]["content"]
        if body.get("stream"):
            return await world.engine.stream(request, chunks(body, text=who))
        return web.json_response(whole(body, text=who))

    world.engine.answer = answer
    keys = {f"c{i}": world.open(f"c{i}", seed=i) for i in range(16)}

    async def ask(name, turn):
        body = {"messages": [{"role": "user", "content": f"{name} {turn}"}], "stream": turn % 2 == 1}
        got = await world.post(body, key=keys[name])
        assert got.status == 200 and f"{turn}".encode() in got.raw

    await asyncio.gather(*(ask(name, turn) for turn in range(8) for name in keys))
    assert len(world.store.calls) == 128
    for call in world.store.calls:
        name, _ = call.request["messages"][0]["content"].split()
        assert call.attempt_id == f"at-{name}" and call.response["content"].startswith(name + " ")
    for name in keys:
        mine = [c for c in world.store.calls if c.attempt_id == f"at-{name}"]
        assert sorted(c.sequence for c in mine) == list(range(8))
    assert (await world.metrics())["in_flight"] == 0


async def test_stopping_the_gateway_records_what_was_under_way(world):
    async def answer(request, body):
        await asyncio.Event().wait()

    world.engine.answer = answer
    asking = asyncio.create_task(world.post())
    await world.engine.arrived.wait()
    await world.gateway.stop()
    assert world.store.calls[0].status == "cancelled"
    await asyncio.gather(asking, return_exceptions=True)


async def test_an_attempt_closed_while_it_is_looked_up_is_refused(world):
    world.store.put("ro-9", "at-9")
    reading, go = asyncio.Event(), asyncio.Event()

    async def slow(rollout_id, attempt_id="latest"):
        reading.set()
        await go.wait()
        return []

    world.store.query_calls = slow
    asking = asyncio.create_task(world.post(key=world.keys.mint("ro-9", "at-9")))
    await reading.wait()
    await world.gateway.close_attempt("at-9")
    go.set()
    assert (await asking).status == 409 and not world.engine.bodies
