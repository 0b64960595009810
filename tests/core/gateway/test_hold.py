"""A policy is held while its engine gets new weights: what the engine gives up is asked again, whole."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from agentlightning.gateway import Upstream
from agentlightning.gateway.errors import EngineUnreachable
from agentlightning.gateway.pause import ABORTED_BY_ENGINE
from agentlightning.gateway.route import CallEdits

from .conftest import chunks, events, whole


@pytest.fixture
def keep_alive():
    return 0.02  # a test of this file waits for a comment


class Weights:
    """An engine that gives up every call under way when it is told to, each in the way that ``how`` says."""

    def __init__(self, world, how="abort"):
        self.world, self.how = world, how
        self.stop = asyncio.Event()
        self.waiting = 0
        self.version = 0
        self.ways = {"abort": self.abort, "cut": self.cut, "500": self.error, "503": self.error,
                     "half": self.half}  # fmt: skip
        world.engine.answer = self.answer
        self.route(stream_ids=None)

    def route(self, **fields):
        route = Upstream(url=self.world.engine.url, model="tiny", version=lambda: self.version, **fields)
        self.world.gateway.add_route(route)

    async def answer(self, request, body):
        if self.version:
            return await self.world.engine.default(request, body)
        self.waiting += 1
        await self.stop.wait()
        return await self.ways[self.how](request, body)

    async def abort(self, request, body):
        if not body.get("stream"):
            made = whole(body, text="half an")
            made["choices"][0]["finish_reason"] = "abort"
            return web.json_response(made)
        *first, last = chunks(body, text="half an")[:4]
        last["choices"][0]["finish_reason"] = "abort"
        return await self.world.engine.stream(request, [first[0], last])

    async def cut(self, request, body):
        request.transport.abort()
        return web.Response()

    async def error(self, request, body):
        return web.json_response({"error": "the engine sleeps"}, status=int(self.how))

    async def half(self, request, body):
        return web.Response(text='{"choices": [{"mes', content_type="application/json")

    async def update(self):
        """As a trainer does: hold, abort, new weights, release."""
        gateway = self.world.gateway
        await gateway.hold("default")
        self.stop.set()
        while (await self.world.metrics())["in_flight"]:
            pass
        assert (await self.world.metrics())["policies_held"] == ["default"]
        asked = len(self.world.engine.bodies)
        self.version = 1
        await gateway.release("default")
        return asked


async def under_way(world, weights, *bodies):
    calls = [asyncio.create_task(world.post(body)) for body in bodies]
    while weights.waiting < len(bodies):
        await world.metrics()
    return calls


@pytest.mark.parametrize("how", ["abort", "cut", "500", "503", "half"])
async def test_a_call_that_was_given_up_is_asked_again_and_nobody_knows(world, how):
    weights = Weights(world, how)
    calls = await under_way(world, weights, {"seed": 5}, {"stream": True})
    weights_asked = await weights.update()
    assert weights_asked == 2
    for call in calls:
        answer = await call
        assert answer.status == 200 and b"there" in answer.raw and b"half" not in answer.raw
    records = world.store.calls
    assert [(c.status, c.policy_version, c.error) for c in records] == [("ok", 1, None)] * 2
    assert sorted(c.sequence for c in records) == [0, 1]
    first, again = (b for b in world.engine.bodies if not b.get("stream"))
    assert first == again, "the same question with the same seed"
    metrics = await world.metrics()
    assert metrics["aborted"] == {"calls": 2, "tokens": {"abort": 2}.get(how, 0)}
    assert (metrics["in_flight"], metrics["waiting"], metrics["policies_held"]) == (0, 0, [])


async def reading(world, body, until, path="/chat/completions"):
    """A streamed call, read up to ``until``; the rest comes from what is returned."""
    headers = {"Authorization": f"Bearer {world.key}"}
    response = await world.session.post(world.url + path, json={"model": "m", "stream": True} | body,
                                        headers=headers)  # fmt: skip
    assert response.status == 200
    read = await response.content.readuntil(until)

    async def rest():
        return read + await response.content.read()

    return rest


HI = [{"role": "user", "content": "hi"}]


async def test_a_replayed_stream_is_kept_alive_and_asked_again(world):
    """Comments have left, and the head; nothing of the answer has."""
    await asked_again(world, "/chat/completions", {"messages": HI}, b": keep-alive")


async def asked_again(world, path, body, until):
    """A stream at ``path`` is asked again after new weights, and kept alive by ``until`` meanwhile."""
    weights = Weights(world)
    weights.route(stream_ids=False)
    rest = await reading(world, body, until, path)
    await weights.update()
    told = await rest()
    assert b"there" in told and b"half" not in told and b"error" not in told.replace(b'"error":null', b"")
    (record,) = world.store.calls
    assert (record.status, record.policy_version) == ("ok", 1)
    assert (await world.metrics())["aborted"] == {"calls": 1, "tokens": 2}


async def test_a_stream_whose_head_has_left_is_not_measured_again(world, monkeypatch):
    """What would be wrong with it could only be said as a second answer within the first."""
    weights, fitted = Weights(world), []
    weights.route(stream_ids=False)

    async def fit(edits, api, body, kept):
        fitted.append(body)
        if len(fitted) > 1:
            raise EngineUnreachable(502, "engine-unreachable", "nobody counts tokens")

    monkeypatch.setattr(CallEdits, "fit", fit)
    rest = await reading(world, {"messages": HI}, b": keep-alive")
    await weights.update()
    told = await asyncio.wait_for(rest(), 300)
    assert b"there" in told and b"HTTP/1.1" not in told and events(told)[-1] == "[DONE]"
    assert [c.status for c in world.store.calls] == ["ok"] and len(fitted) == 1


async def test_a_stream_of_which_a_part_has_left_ends_with_the_reason(world):
    weights = Weights(world)
    weights.route(stream_ids=True)

    async def answer(request, body):
        first = chunks(body, text="hello there world")[:3]
        await world.engine.stream(request, first, done=False, pause_after=2, gate=weights.stop)
        request.transport.abort()
        return web.Response()

    world.engine.answer = answer
    rest = await reading(world, {"messages": HI}, b"there")
    await weights.update()
    got = events(await rest())
    assert got[-1]["error"]["code"] == ABORTED_BY_ENGINE and "[DONE]" not in got
    (record,) = world.store.calls
    assert record.status == "error" and record.error.startswith(ABORTED_BY_ENGINE)
    assert record.response["content"] == "hello there"
    assert (await world.metrics())["aborted"] == {"streams": 1, "tokens": 2}


async def test_an_error_without_a_hold_is_an_error(world):
    weights = Weights(world, "503")
    await world.gateway.hold("default")
    await world.gateway.release("default")
    (call,) = await under_way(world, weights, {})
    weights.stop.set()
    answer = await call
    assert answer.status == 503 and world.store.calls[0].status == "error"
    assert (await world.metrics())["aborted"] == {}


async def test_an_engine_that_stays_broken_is_asked_once_more_and_no_oftener(world):
    weights = Weights(world, "500")
    (call,) = await under_way(world, weights, {})
    await world.gateway.hold("default")
    weights.stop.set()
    while (await world.metrics())["in_flight"]:
        pass
    await world.gateway.release("default")
    assert (await call).status == 500 and len(world.engine.bodies) == 2
    assert [c.status for c in world.store.calls] == ["error"]


async def test_an_error_of_the_request_is_the_agents_while_held(world):
    weights = Weights(world)

    async def refuse(request, body):
        weights.waiting += 1
        await weights.stop.wait()
        return web.json_response({"error": {"message": "no such tool"}}, status=400)

    world.engine.answer = refuse
    (call,) = await under_way(world, weights, {})
    await world.gateway.hold("default")
    weights.stop.set()
    assert (await call).status == 400 and len(world.engine.bodies) == 1
    await world.gateway.release("default")


async def test_a_call_that_its_engine_finishes_while_held_is_finished(world):
    async def answer(request, body):
        await world.gateway.hold("default")
        return web.json_response(whole(body))

    world.engine.answer = answer
    assert (await world.post()).status == 200 and len(world.engine.bodies) == 1
    await world.gateway.release("default")


async def test_only_the_policys_own_calls_are_held(world):
    world.gateway.add_route(Upstream(policy="other", url=world.engine.url, model="other"))
    await world.gateway.hold("default")
    await world.gateway.hold("default")  # said twice is said once
    held = asyncio.create_task(world.post({"model": "default"}))
    while (await world.metrics())["waiting"] < 1:
        pass
    assert (await world.post({"model": "other"})).status == 200
    await world.gateway.hold()
    await world.gateway.release("default")
    assert (await world.metrics())["waiting"] == 1, "the gate is closed for all"
    await world.gateway.release()
    assert (await held).status == 200
    assert [b["model"] for b in world.engine.bodies] == ["other", "tiny"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_whose_attempt_is_closed_while_it_waits_to_be_asked_again(world, stream):
    weights = Weights(world)
    (call,) = await under_way(world, weights, {"stream": stream})
    await world.gateway.hold("default")
    weights.stop.set()
    while (await world.metrics())["waiting"] < 1:
        pass
    await world.gateway.close_attempt("at-1")
    if stream:  # its head has left
        with pytest.raises(aiohttp.ClientPayloadError):
            await call
    else:
        answer = await call
        assert answer.status == 409 and json.loads(answer.raw)["error"]["code"] == "attempt-ended"
    (record,) = world.store.calls
    assert record.status == "cancelled" and record.response is None
    assert len(world.engine.bodies) == 1
