"""Several gateways of one run: told together, replaced when they die, given up when they cannot live."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from agl_gateway.budget.limits import Budget
from agl_gateway.budget.spending import AGE, Spending
from aiohttp import web
from core.gateway.conftest import SECRET, whole
from pydantic import BaseModel

from agentlightning.gateway import AttemptInfo, Upstream
from agentlightning.gateway.route import ranking
from agentlightning.gateway.settings import CallSection, GatewaySection
from agentlightning.keys import Keys
from agentlightning.specs import CallGuard
from agentlightning.store import SQLiteStore
from agentlightning.train.config import fields as config_fields
from agentlightning.types import UsageError
from agentlightning.webserver import app_runner, listen
from agl_cluster.gateways import member
from agl_cluster.gateways.main import Setup
from agl_cluster.gateways.pool import GatewayProcesses
from agl_cluster.store.access import StoreAccess
from agl_cluster.store.app import create_app

GATEWAYS = 2


@contextlib.asynccontextmanager
async def several(
    folder: Path,
    engine: Any,
    guards: Sequence[CallGuard] = (),
    section: BaseModel | None = None,
    **settings: Any,
) -> AsyncIterator[Any]:
    """Two gateway processes before the engine, and a store that this process serves to them. ``section``: the
    section ``gateway`` of the run, as its route has it; ``settings``: fields of the processes' own.
    """
    store = SQLiteStore(folder / "store.sqlite")
    runner = app_runner(create_app(store, StoreAccess("the-token-of-this-test")))
    for guard in guards:
        await guard.begin(store, "run", {})
        guard.share()
    setup = Setup(
        secret=SECRET,
        shared=True,
        store=await listen(runner),
        token="the-token-of-this-test",
        settings=GatewaySection(**settings),
        calls=CallSection(),
        guards=guards,
    )
    pool = GatewayProcesses(Keys(SECRET), setup.settings, GATEWAYS, pickle.dumps(setup))
    fresh = aiohttp.TCPConnector(force_close=True)
    world = SimpleNamespace(
        pool=pool,
        store=store,
        version=0,
        session=aiohttp.ClientSession(connector=fresh, timeout=aiohttp.ClientTimeout(60)),
    )
    route = Upstream(url=engine.url, model="tiny", version=lambda: world.version, settings=section)
    pool.add_route(route)

    async def attempt() -> SimpleNamespace:
        lease = await store.start_rollout({}, run_id="run")
        info = AttemptInfo.of(lease.rollout, lease.attempt, {})
        url = pool.urls[ranking(info.attempt_id, tuple(pool.urls))[0]]
        return SimpleNamespace(
            rollout=info.rollout_id, id=info.attempt_id, url=url, key=pool.open_attempt(info)
        )

    async def post(one: Any) -> Any:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {one.key}"}
        async with world.session.post(f"{one.url}/chat/completions", json=body, headers=headers) as got:
            return SimpleNamespace(status=got.status, body=await got.json(), headers=got.headers)

    async def one_each() -> list[Any]:
        """An attempt for each gateway."""
        found: dict[str, Any] = {}
        while len(found) < len(pool.urls):
            one = await attempt()
            found.setdefault(one.url, one)
        return [found[url] for url in pool.urls]

    world.attempt, world.post, world.one_each = attempt, post, one_each
    try:
        await pool.start()
        yield world
    finally:
        await world.session.close()
        await pool.stop()
        await runner.cleanup()
        await store.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not true():
            await asyncio.sleep(0.01)


async def test_a_hold_reaches_all_and_the_release_brings_the_version(tmp_path: Path, engine: Any) -> None:
    async with several(tmp_path, engine) as world:
        attempts = await world.one_each()
        await world.pool.hold("default")
        assert await world.pool.drain(5.0)
        calls = [asyncio.create_task(world.post(one)) for one in attempts]
        await asyncio.sleep(0.3)
        assert not engine.bodies
        world.version = 4
        await world.pool.release("default")
        assert [answer.status for answer in await asyncio.gather(*calls)] == [200] * GATEWAYS
        stored = [c for one in attempts for c in await world.store.query_calls(one.rollout, one.id)]
        assert [call.policy_version for call in stored] == [4] * GATEWAYS
        await world.pool.settle()
        assert world.pool.metrics.calls == Counter(ok=GATEWAYS)


@pytest.mark.slow
async def test_each_process_edits_calls_as_the_run_says(tmp_path: Path, engine: Any) -> None:
    """The fields are those of agl-gateway: the run sends them, and each process reads them by its plugins."""
    engine.options = {"text": "<think>he is the seer</think> I vote 5"}
    given = {"reasoning": "split", "over_length": "truncate", "max_len": 64}
    section = config_fields().sections["gateway"].model_validate(given)
    async with several(tmp_path, engine, section=section) as world:
        attempts = await world.one_each()
        answers = [await world.post(one) for one in attempts]
        stored = [c for one in attempts for c in await world.store.query_calls(one.rollout, one.id)]
        await world.pool.settle()
        unchecked = world.pool.metrics.over_length["unchecked"]
    assert [answer.status for answer in answers] == [200] * GATEWAYS
    messages = [answer.body["choices"][0]["message"] for answer in answers]
    assert [(m["content"], m["reasoning_content"]) for m in messages] == [
        ("I vote 5", "he is the seer")
    ] * GATEWAYS
    assert [call.edited for call in stored] == [{"reasoning": "split"}] * GATEWAYS
    assert unchecked == GATEWAYS, "each asked the engine to count a prompt that 64 tokens may be too few for"


@pytest.mark.slow
async def test_drain_waits_for_the_calls_of_all(tmp_path: Path, engine: Any) -> None:
    async with several(tmp_path, engine) as world:
        go = asyncio.Event()

        async def slow(request: web.Request, body: Any) -> web.Response:
            await go.wait()
            return web.json_response(whole(body))

        engine.answer = slow
        calls = [asyncio.create_task(world.post(one)) for one in await world.one_each()]
        await until(lambda: len(engine.bodies) == GATEWAYS)
        await world.pool.hold()
        assert not await world.pool.drain(0.1)
        go.set()
        assert await world.pool.drain(5.0)
        await asyncio.gather(*calls)


@pytest.mark.slow
async def test_a_process_that_takes_a_dead_ones_place_begins_held(tmp_path: Path, engine: Any) -> None:
    async with several(tmp_path, engine) as world:
        first = (await world.one_each())[0]
        assert (await world.post(first)).status == 200
        await world.pool.hold("default")
        before = list(world.pool.pids)
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: before[0] not in world.pool.pids)
        call = asyncio.create_task(world.post(first))  # it waits for the address's next process
        await until(lambda: len(world.pool.pids) == GATEWAYS and world.pool.pids[0] != before[0])
        await world.pool.settle()
        await asyncio.sleep(0.3)
        assert len(engine.bodies) == 1 and world.pool.accounts()["gateways-ended"] == 1
        await world.pool.release("default")
        assert (await call).status == 200
        stored = await world.store.query_calls(first.rollout, first.id)
        assert [call.sequence for call in stored] == [0, 1]  # the new process goes on where the dead one was
        await world.pool.settle()
        assert world.pool.metrics.calls["ok"] >= 1


@pytest.mark.slow
async def test_a_process_that_does_not_answer_is_killed_before_a_hold_returns(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several(tmp_path, engine) as world:
        await world.pool.settle()
        monkeypatch.setattr(member, "PATIENCE", 1.5)
        silent = world.pool.pids[1]
        os.kill(silent, signal.SIGSTOP)
        await world.pool.hold("default")
        assert silent not in world.pool.pids
        monkeypatch.undo()


@pytest.mark.slow
async def test_an_address_whose_processes_do_not_live_is_given_up(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several(tmp_path, engine) as world:
        await world.pool.settle()
        moved = asyncio.Event()

        async def tell() -> None:
            moved.set()

        world.pool.moved = tell
        monkeypatch.setattr(sys, "executable", "/bin/false")
        os.kill(world.pool.pids[0], signal.SIGKILL)
        await asyncio.wait_for(moved.wait(), 300)
        assert len(world.pool.urls) == 1 and world.pool.accounts()["gateways-given-up"] == 1
        assert (await world.post(await world.attempt())).status == 200


@pytest.mark.slow
async def test_a_budget_is_read_from_the_store_by_every_process(tmp_path: Path, engine: Any) -> None:
    spending = Spending(Budget(calls=4))
    async with several(tmp_path, engine, [spending]) as world:
        await world.pool.settle()
        one, other = await world.one_each()
        assert (await world.post(one)).status == (await world.post(other)).status == 200
        await asyncio.sleep(2 * AGE)  # each reads what the other has recorded
        hang = asyncio.Event()

        async def never(request: web.Request, body: Any) -> web.Response:
            await hang.wait()
            return web.json_response(whole(body))

        engine.answer = never
        engine.arrived.clear()
        call = asyncio.create_task(world.post(one))
        await engine.arrived.wait()
        os.kill(world.pool.pids[0], signal.SIGKILL)
        with pytest.raises(aiohttp.ClientError):
            await call
        hang.set()  # nothing of that call is on record
        assert [(await world.post(one)).status for _ in range(3)] == [200, 200, 403]
        await asyncio.sleep(2 * AGE)
        assert (await world.post(other)).status == 403
        assert await spending.exhausted() == "budget: calls: 4 of 4 are used"
        assert spending.spent.calls == 4 and spending.refused == 2


@pytest.mark.slow
async def test_a_closed_attempt_is_refused_by_every_gateway(tmp_path: Path, engine: Any) -> None:
    async with several(tmp_path, engine) as world:
        one = await world.attempt()
        assert (await world.post(one)).status == 200
        await world.pool.close_attempt(one.id)
        for url in world.pool.urls:
            one.url = url
            assert (await world.post(one)).status == 409


@pytest.mark.slow
async def test_processes_end_with_their_run(tmp_path: Path, engine: Any) -> None:
    async with several(tmp_path, engine) as world:
        await world.pool.settle()
        pids = list(world.pool.pids)
        for one in world.pool._members:
            one._channel.close()  # as when the run's process dies
        await until(lambda: not {*pids} & {*world.pool.pids})


async def test_ports_follow_the_first_and_a_taken_one_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        pool = GatewayProcesses(Keys(SECRET), GatewaySection(listen=f"127.0.0.1:{port}"), 1, b"")
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}: the port is in use"):
            await pool.start()
    assert not pool.pids


def test_an_advertised_balancer_is_one_address() -> None:
    settings = GatewaySection(advertise="https://gateways.example")
    pool = GatewayProcesses(Keys(SECRET), settings, 2, b"")
    pool._members = [pool._bind(number) for number in range(2)]
    assert pool.urls == ["https://gateways.example/v1"]
    for one in pool._members:
        one.listener.close()
