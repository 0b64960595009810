"""A run's budget, and what its gateway counts while it trains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from contract.runs import RUN, make_run

from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.types import StepReport
from agl_dashboard.data import gateways
from agl_dashboard.pages.budget import budget_of
from plugins.dashboard.tests.conftest import Serve

BUDGET = {
    "limits": {"calls": 100, "money": 2.0},
    "per_rollout": {"tokens": 500},
    "spent": {"calls": 25, "prompt_tokens": 40, "completion_tokens": 2, "money": 1.9, "seconds": 7.0},
    "refused": 3,
    "unpriced": {"my-critic": 4},
}


async def test_a_run_shows_what_it_spent(tmp_path: Path, serve: Serve) -> None:
    await make_run(tmp_path, info={"budget": BUDGET})
    page = await (await serve(tmp_path)).get(f"/s/{RUN}/runs/{RUN}")
    assert "Budget 3 calls refused" in page.words and "calls 25 100" in page.words
    assert "my-critic (4 calls)" in page.words


async def test_a_run_shows_its_alarms_and_behaviour(tmp_path: Path, serve: Serve) -> None:
    alarm = {
        "kind": "tools", "says": "the reward rises while tools die out", "first": [1, 5], "last": [6, 10],
        "figures": {"behaviour/tool_calls": [1.0, 0.0]}, "rollouts": ["ro-0-0", "ro-1-1"],
    }  # fmt: skip
    folder = await make_run(tmp_path, info={"alarms": {"tools": alarm}})
    store = SQLiteStore(folder / "store.sqlite")
    metrics = {"behaviour/turns": 2.0, "behaviour/distinct": 0.5}
    await store.add_step(StepReport(run_id=RUN, step=2, policy="policy", policy_version=3, metrics=metrics))
    await store.close()
    browser = await serve(tmp_path)
    page = await browser.get(f"/s/{RUN}/runs/{RUN}")
    assert "Alarm: the reward rises while tools die out: tool calls a rollout 1 → 0" in page.words
    assert "Turns and tools" in page.words and "Distinct action sequences" in page.words
    (both,) = [link for link in page.links if "difference" in link]
    assert "ro-0-0" in (await browser.get(both)).words
    assert "alarm: the reward rises while tools die out" in (await browser.get("/")).words
    rollout = await browser.get(f"/s/{RUN}/rollouts/ro-0-0")
    assert "Behaviour turns 2 tool calls 1 of which failed 0 tokens an answer 2 cut 0" in rollout.words
    assert not page.active and not rollout.active


def test_a_run_that_trains_has_spent_what_its_newest_step_says() -> None:
    steps = [
        StepReport(
            run_id="r",
            policy="p",
            policy_version=n,
            step=n,
            metrics={"budget/calls": 10.0 * n, "budget/refused": n},
        )
        for n in (1, 5)
    ]
    found = budget_of({"budget": BUDGET}, steps)
    assert found is not None and found.refused == 5
    calls, tokens, money, seconds = found.amounts
    assert (calls.spent, calls.limit, calls.share) == (50.0, 100, 0.5)
    assert (tokens.spent, tokens.limit, tokens.per_rollout, tokens.share) == (42, None, 500, None)
    assert money.share == pytest.approx(0.95) and seconds.spent == 7.0
    ended = budget_of({"summary": {"budget": BUDGET}}, steps)
    assert ended is not None and ended.amounts[0].spent == 25
    assert budget_of({}, steps) is None


@asynccontextmanager
async def answering(body: str, status: int = 200) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, status=status, content_type="application/json")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


async def test_a_gateway_says_what_it_counts_now() -> None:
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, Keys())
    gateway.add_route(Upstream(policy="policy", url="http://127.0.0.1:9/v1", model="m"))
    await gateway.start()
    gateway.metrics.calls["ok"] += 3
    state = await gateways.ask(gateway.url)
    await gateway.stop()
    await store.close()
    assert state.problem == "" and state.counts == {"calls": {"ok": 3}} and state.gate["in_flight"] == 0
    assert [(e.policy, e.endpoint, e.up) for e in state.engines] == [("policy", 0, True)]


@pytest.mark.parametrize("body, status", [("[]", 200), ("{", 200), ("{}", 200), ("{}", 500)])
async def test_what_is_no_gateway_is_said_so(body: str, status: int) -> None:
    async with answering(body, status) as url:
        assert (await gateways.ask(url)).problem


async def test_only_this_machine_is_asked() -> None:
    assert "another machine" in (await gateways.ask("http://192.0.2.1:80/v1")).problem
    assert "does not answer" in (await gateways.ask("http://127.0.0.1:9/v1")).problem
    assert gateways.is_here("http://[::1]:1/v1") and not gateways.is_here("http://localhost.example/v1")
    assert not gateways.is_here("file:///etc/passwd") and not gateways.is_here("http://[")


async def test_the_machines_of_a_run_that_trains(tmp_path: Path, serve: Serve) -> None:
    store = SQLiteStore(tmp_path / "kept.sqlite")
    gateway = Gateway(store, Keys())
    gateway.add_route(Upstream(policy="policy", url="http://127.0.0.1:9/v1", model="m"))
    await gateway.start()
    await store.add_run("r", {"run_id": "r", "about": {"gateway": gateway.url}})
    browser = await serve(tmp_path / "kept.sqlite")
    page = await browser.get("/s/kept/machines")
    assert "Gateway of r , now" in page.words and "policy 0 up" in page.words
    several = [gateway.url, "http://127.0.0.1:9/v1"]
    await store.add_run("s", {"run_id": "s", "about": {"gateway": gateway.url, "gateways": several}})
    page = await browser.get("/s/kept/machines")
    assert page.words.count("Gateway of s , now") == 2 and "does not answer" in page.words
    await gateway.stop()
    await store.close()
