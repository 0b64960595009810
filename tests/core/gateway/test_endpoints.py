"""Several addresses of one policy: who goes where, and what becomes of a call whose engine is gone."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest
from aiohttp import web
from core.gateway.conftest import Engine, events, tokens_of
from hypothesis import given, strategies as st

from agentlightning.gateway import Upstream
from agentlightning.gateway.route import EJECTION_SECONDS, Endpoints, ranking

URLS = tuple(f"http://10.0.0.{n}:8000/v1" for n in range(8))


# ------------------------------------------------------------------------------------------------ the ranking
def test_keys_are_spread():
    first = Counter(ranking(f"at-{n}", URLS)[0] for n in range(4_000))
    assert len(first) == 8 and min(first.values()) > 425 and max(first.values()) < 575  # 500 ± 3.6 sigma


@given(st.text(min_size=1, max_size=200), st.permutations(URLS))
def test_ranking_is_a_function_of_key_and_addresses(key, urls):
    urls = tuple(urls)
    assert sorted(ranking(key, urls)) == list(range(8))
    assert [urls[i] for i in ranking(key, urls)] == [URLS[i] for i in ranking(key, URLS)]


@given(st.text(min_size=1, max_size=40), st.integers(0, 7))
def test_who_leaves_moves_nobody_else(key, gone):
    left = tuple(url for n, url in enumerate(URLS) if n != gone)
    before = [URLS[i] for i in ranking(key, URLS) if i != gone]
    assert [left[i] for i in ranking(key, left)] == before


def test_a_resting_address_comes_last_and_one_call_tries_it_again():
    now = [100.0]
    addresses = Endpoints(URLS[:3], clock=lambda: now[0])

    def order():
        return [a.url for a in addresses.order("at-1")]

    usual = order()
    (dead,) = [a for a in addresses.all if a.url == usual[0]]
    assert addresses.eject(dead) and not addresses.eject(dead)
    assert order() == [*usual[1:], usual[0]] and not dead.state()["up"]
    now[0] += EJECTION_SECONDS
    assert order() == usual  # the one call that tries
    assert order() == [*usual[1:], usual[0]]  # the others wait for how it ends
    dead.ejected_until = 0.0
    assert order() == usual and dead.state()["up"]


def test_without_a_key_each_is_first_in_turn():
    addresses = Endpoints(URLS[:3])
    first = [next(addresses.order(None)).url for _ in range(6)]
    assert Counter(first) == dict.fromkeys(URLS[:3], 2)


def test_addresses_are_checked():
    with pytest.raises(
        ValueError, match=r"route 'default': an address is given twice: http://h/v1, http://h/v1/"
    ):
        Upstream(url="http://h/v1", replicas=["http://h/v1/"], model="m")
    with pytest.raises(ValueError, match=r"url is 'nowhere'"):
        Upstream(url="http://h/v1", replicas=["nowhere"], model="m")
    with pytest.raises(ValueError, match=r"carries credentials"):
        Upstream(url="http://h/v1", replicas=["http://u:p@h/v1"], model="m")


# ---------------------------------------------------------------------------------------- behind the gateway
@pytest.fixture
async def fleet(world):
    """Three engines behind the route ``default``; ``seat(key)``: the engine of an attempt."""
    engines = [world.engine, Engine(), Engine()]
    for engine in engines[1:]:
        await engine.start()
    urls = [engine.url for engine in engines]
    route = Upstream(url=urls[0], replicas=urls[1:], model="tiny", api_key="engine-secret")
    world.gateway.add_route(route)
    fleet = SimpleNamespace(engines=engines, route=route, now=0.0)
    fleet.clock = lambda: fleet.now
    route.endpoints._clock = fleet.clock
    fleet.order = lambda attempt: [engines[i] for i in ranking(attempt, tuple(urls))]

    async def states():
        return dict(zip(urls, (await world.metrics())["engines"]["default"], strict=True))

    fleet.states = states
    yield fleet
    for engine in engines[1:]:
        await engine.runner.cleanup()


def asked(engine):
    return [body["messages"][0]["content"] for body in engine.bodies]


async def test_an_attempt_keeps_to_one_engine(world, fleet):
    keys = {n: world.open(f"a{n}") for n in range(24)}
    await asyncio.gather(
        *(
            world.post({"messages": [{"role": "user", "content": f"{n}"}]}, key=key)
            for n, key in keys.items()
            for _ in range(3)
        )
    )
    for n in keys:
        assert [asked(e).count(str(n)) for e in fleet.engines].count(3) == 1
        assert asked(fleet.order(f"at-a{n}")[0]).count(str(n)) == 3
    assert all(engine.bodies for engine in fleet.engines)
    assert sum(one["answered"] for one in (await fleet.states()).values()) == 72


async def test_failover_under_load(world, fleet):
    """One engine goes while 40 attempts talk: every call is answered, and recorded once, with its own ids."""
    gone = fleet.order("at-a0")[0]

    async def talk(n):
        key = world.open(f"a{n}")
        for turn in range(6):
            if n == 0 and turn == 3:
                await gone.runner.cleanup()
            got = await world.post({"messages": [{"role": "user", "content": f"{n}.{turn}"}]}, key=key)
            assert got.status == 200, got.raw

    await asyncio.gather(*(talk(n) for n in range(40)))
    calls = world.store.calls
    assert len(calls) == 240 == len({c.call_id for c in calls})
    ids, logprobs = tokens_of("hello there world")
    assert {(c.status, tuple(c.response_ids), tuple(c.logprobs)) for c in calls} == {
        ("ok", tuple(ids), tuple(logprobs))
    }
    told = await fleet.states()
    dead = told.pop(gone.url)
    assert not dead["up"] and dead["failovers"] == dead["lost"] >= 1
    assert (await world.metrics())["failovers"] == {"default": dead["failovers"]}
    assert all(one["up"] and not one["lost"] and not one["in_flight"] for one in told.values())
    assert dead["answered"] + sum(one["answered"] for one in told.values()) == 240
    lanes = {f"{n}.5": n for n in range(40)}  # after the move, too, each attempt has one engine
    assert all(sum(asked(e).count(last) for e in fleet.engines) == 1 for last in lanes)


async def test_all_gone_then_one_comes_back(world, fleet, caplog):
    for engine in fleet.engines:
        await engine.runner.cleanup()
    got = await world.post()
    assert got.status == 502 and json.loads(got.raw)["error"]["code"] == "engine-unreachable"
    assert b"one of 3" in got.raw and b"engine-secret" not in got.raw
    (call,) = world.store.calls
    assert call.status == "error" and call.error.startswith("engine-unreachable")
    assert [one["lost"] for one in (await fleet.states()).values()] == [1, 1, 1]
    assert sum("no connection to" in line for line in caplog.messages) == 3
    back = fleet.order("at-1")[2]
    await back.start(int(back.url.removesuffix("/v1").rpartition(":")[2]))
    assert (await world.post()).status == 200  # it rests, but nobody else is there
    told = await fleet.states()
    assert told[back.url]["up"] and [one["up"] for one in told.values()].count(False) == 2
    await back.runner.cleanup()


async def test_a_dead_address_is_tried_again_after_a_while(world, fleet):
    home, second, _ = fleet.order("at-1")
    await home.runner.cleanup()
    assert (await world.post()).status == 200
    assert (len(home.bodies), len(second.bodies)) == (0, 1)
    await home.start(int(home.url.removesuffix("/v1").rpartition(":")[2]))
    assert (await world.post()).status == 200 and len(second.bodies) == 2  # not yet
    fleet.now += EJECTION_SECONDS
    assert (await world.post()).status == 200 and len(home.bodies) == 1
    assert (await world.post()).status == 200 and len(home.bodies) == 2
    assert (await fleet.states())[home.url] == {
        "up": True, "in_flight": 0, "answered": 2, "lost": 1, "failovers": 1,
    }  # fmt: skip
    await home.runner.cleanup()


def abort(times=1_000):
    """An engine that breaks the line of its first requests."""
    left = [times]

    async def answer(request, body):
        left[0] -= 1
        if left[0] >= 0:
            request.transport.abort()
        return web.Response()

    return answer


async def test_a_call_that_is_cut_off_is_asked_again_once(world, fleet):
    home, second, third = fleet.order("at-1")
    home.answer = abort()
    got = await world.post()
    assert got.status == 200 and len(second.bodies) == 1 and not third.bodies
    second.answer = abort()
    assert (await world.post()).status == 502 and not third.bodies
    assert [c.status for c in world.store.calls] == ["ok", "error"]
    told = await fleet.states()
    assert (told[home.url]["lost"], told[home.url]["failovers"]) == (2, 2)
    assert (told[second.url]["lost"], told[second.url]["failovers"]) == (1, 0)
    assert told[home.url]["up"]  # it took the connection


async def test_what_an_engine_says_is_final(world, fleet):
    home, second, third = fleet.order("at-1")

    async def broken(request, body):
        return web.json_response({"error": {"message": "no"}}, status=500)

    home.answer = broken
    assert (await world.post()).status == 500 and not second.bodies and not third.bodies

    async def half(request, body):
        out = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
        await out.prepare(request)
        await out.write(b'{"choices": [')
        request.transport.abort()
        return out

    home.answer = half
    assert (await world.post()).status == 502 and not second.bodies
    world.gateway._client._session._timeout = __import__("aiohttp").ClientTimeout(total=0.05)

    async def silent(request, body):
        await asyncio.Event().wait()

    home.answer = silent
    assert (await world.post()).status == 504 and not second.bodies
    assert [c.status for c in world.store.calls] == ["error"] * 3


PROMPT = [{"role": "user", "content": "hi"}]
ASKED = {
    "/chat/completions": {"messages": PROMPT},
    "/completions": {"prompt": "hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKED)
async def test_every_api_moves_on(world, fleet, path, stream):
    await moves_on(world, fleet, path, ASKED[path], stream)


async def moves_on(world, fleet, path, asked, stream):
    """A call of the API at ``path`` goes to the second engine where the first is gone."""
    home, second, _ = fleet.order("at-1")
    await home.runner.cleanup()
    body = {"model": "m", "stream": stream} | asked
    got = await world.post(data=json.dumps(body).encode(), path=path)
    assert got.status == 200, got.raw
    if stream and "completions" in path:
        assert events(got.raw)[-1] == "[DONE]"
    (call,) = world.store.calls
    assert call.status == "ok" and call.response_ids == tokens_of("hello there world")[0]
    assert len(second.bodies) == 1 and (await fleet.states())[home.url]["failovers"] == 1


async def test_gauge_and_gate(world, fleet):
    """Calls at several engines are counted where they are; the gate waits for all, and holds for all."""
    held = asyncio.Event()
    arrived = asyncio.Semaphore(0)

    async def slow(request, body):
        arrived.release()
        await held.wait()
        return await fleet.engines[0].default(request, body)

    for engine in fleet.engines:
        engine.answer = slow
    keys = [world.open(f"a{n}") for n in range(12)]
    posts = [asyncio.create_task(world.post(key=key)) for key in keys]
    for _ in keys:
        await arrived.acquire()
    states = await fleet.states()
    there = dict.fromkeys(states, 0) | Counter(fleet.order(f"at-a{n}")[0].url for n in range(12))
    assert {url: one["in_flight"] for url, one in states.items()} == there
    await world.gateway.hold()
    late = asyncio.create_task(world.post())
    assert not await world.gateway.drain(timeout=0.01)
    held.set()
    assert await world.gateway.drain(timeout=5) and not late.done()
    await world.gateway.release()
    assert {(await one).status for one in [*posts, late]} == {200}
    assert {one["in_flight"] for one in (await fleet.states()).values()} == {0}


async def test_an_agent_that_hangs_up_leaves_no_gauge_behind(world, fleet):
    home = fleet.order("at-1")[0]
    begun = asyncio.Event()

    async def silent(request, body):
        begun.set()
        await asyncio.Event().wait()

    home.answer = silent
    post = asyncio.create_task(world.post())
    await begun.wait()
    await world.gateway.close_attempt("at-1")
    assert (await post).status == 409
    assert (await fleet.states())[home.url]["in_flight"] == 0
