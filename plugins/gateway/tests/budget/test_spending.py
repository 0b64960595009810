"""Budgets at the gateway: calls are refused, wait for those under way, and are counted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from agl_gateway.budget.limits import Budget
from agl_gateway.budget.prices import Price, Pricing
from agl_gateway.budget.spending import Spending
from aiohttp import web
from core.gateway.conftest import whole

from agentlightning.credit.eligibility import untrainable_reasons
from agentlightning.credit.verdicts import open_ledger, verdicts
from agentlightning.gateway import AttemptInfo
from agentlightning.plugins.manager import build
from agentlightning.recipes import get
from agentlightning.runner.ending import model_fault
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, StepReport

CALL = 6
"""Tokens of the engine's answer: 3 of the prompt, 3 of the text."""


def limit(world: Any, run: Budget | None = None, per_rollout: Budget | None = None) -> Spending:
    spending = Spending(run or Budget(), per_rollout or Budget())
    pipeline = world.gateway._pipeline
    spending.join(pipeline.writer.store)
    pipeline.guards = pipeline.writer.guards = [spending]
    return spending


def code_of(answer: Any) -> str:
    return str(json.loads(answer.raw)["error"]["code"])


@pytest.mark.parametrize(
    ("budget", "most"),
    [(Budget(calls=20), 20), (Budget(tokens=120), 20), (Budget(calls=20, tokens=10**6), 20)],
)
async def test_with_64_calls_in_flight_no_call_begins_beyond_the_budget(
    world: Any, budget: Budget, most: int
) -> None:
    under_way: Counter[str] = Counter()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.Response:
        under_way["now"] += 1
        under_way["most"] = max(under_way["most"], under_way["now"])
        await asyncio.sleep(0.01)
        under_way["now"] -= 1
        return web.json_response(whole(body))

    world.engine.answer = answer
    spending = limit(world, budget)
    answers = await asyncio.gather(*(world.post() for _ in range(64)))
    assert Counter(one.status for one in answers) == {200: most, 403: 64 - most}
    assert under_way["most"] > 4  # calls ran beside each other
    assert len(world.engine.bodies) == spending.spent.calls == most and spending.refused == 64 - most
    refused = [one for one in answers if one.status == 403]
    assert all(code_of(one) == "budget-spent" and one.headers["x-should-retry"] == "false" for one in refused)
    # every refusal is on record, as a call that no engine saw
    assert Counter(c.masked for c in world.store.calls if c.status == "error") == {"budget": 64 - most}


async def test_calls_that_grow_exceed_a_budget_by_what_was_under_way_at_most(world: Any) -> None:
    sizes = iter([3, *[60] * 63])

    async def answer(request: web.Request, body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.01)
        return web.json_response(whole(body, text=" ".join(["word"] * next(sizes))))

    world.engine.answer = answer
    spending = limit(world, Budget(tokens=600))
    await asyncio.gather(*(world.post() for _ in range(64)))
    # the first call of 6 tokens lets others begin as if they cost 6 too
    assert 600 <= spending.spent.tokens <= 600 + 64 * 63
    begun = spending.spent.calls
    await asyncio.gather(*(world.post() for _ in range(64)))
    assert spending.spent.calls == begun  # and then none begins


async def test_a_rollouts_next_call_is_refused_and_others_go_on(
    engine: Any, tmp_path: Any, world: Any
) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    # the gateway of this test stands on a real store, whose earlier attempts count
    world.gateway._pipeline.writer.store = store
    limit(world, per_rollout=Budget(calls=3))

    async def lease() -> tuple[Any, Any, str]:
        found = await store.start_rollout({"q": 1}, worker_id="w")
        rollout, attempt = found.rollout, found.attempt
        info = AttemptInfo(rollout_id=rollout.rollout_id, attempt_id=attempt.attempt_id, fence=attempt.fence)
        return rollout, attempt, world.gateway.open_attempt(info)

    (rollout, attempt, key), (_, _, other) = await lease(), await lease()
    statuses = [(await world.post(key=key)).status for _ in range(5)]
    assert statuses == [200, 200, 200, 403, 403] and (await world.post(key=other)).status == 200
    calls = await store.query_calls(rollout.rollout_id, None)
    assert model_fault(calls) == "budget"  # the failure table's kind, should the agent raise
    await store.update_attempt(rollout.rollout_id, attempt.attempt_id, AttemptStatus.SUCCEEDED)
    (record,) = await store.records([rollout.rollout_id])
    found = verdicts(record)
    reasons = untrainable_reasons(record, found, get("grpo"), version=None)
    assert Counter(reasons.values())["budget"] == 2
    ledger = open_ledger(record, found)
    assert ledger.made == ledger.recorded == 5
    # a gateway that has forgotten the rollout reads what it spent
    again = Spending(per_rollout=Budget(calls=3))
    again.join(store)
    account = (await again._rollout(rollout.rollout_id)).account
    assert account.spent.calls == 3 and account.why_spent(0) == "calls: 3 of 3 are used"
    await store.close()


async def test_time_is_a_budget_too_and_a_resumed_run_goes_on_counting(tmp_path: Any) -> None:
    now = [100.0]
    spending = Spending(Budget(seconds=60), clock=lambda: now[0])
    now[0] += 25
    assert await spending.exhausted() is None and spending.seconds == 25
    store = SQLiteStore(tmp_path / "store.sqlite")
    later = Spending(Budget(seconds=60), clock=lambda: now[0])
    await later.begin(store, "run", spending.summary())
    now[0] += 36
    assert await later.exhausted() == "budget: seconds: 61 of 60 are used"
    await store.close()


async def test_what_a_service_trains_is_spent_too_and_a_resumed_run_goes_on_counting(tmp_path: Any) -> None:
    def report(policy: str, trained: int) -> StepReport:
        metrics = {"service/forward_tokens": 0.0, "service/trained_tokens": float(trained)}
        return StepReport(run_id="run", step=0, policy=policy, policy_version=1, metrics=metrics)

    prices = {name: Price(train=2.0) for name in ("a", "b")}
    spending = Spending(Budget(money=5.0), pricing=Pricing(prices))
    plugins = build(discover=False).with_listeners([spending])  # as a run's guards are
    # The service's counts are sums, so a report says again what the one before it said.
    for policy, trained in (("a", 400_000), ("b", 100_000), ("a", 900_000)):
        plugins.ask("agl_policy_updated", report=report(policy, trained))
    assert spending.spent.money == spending.summary()["training"] == 2.0
    assert await spending.exhausted() is None
    store = SQLiteStore(tmp_path / "store.sqlite")
    later = Spending(Budget(money=5.0), pricing=Pricing(prices))
    await later.begin(store, "run", spending.summary())
    assert later.spent.money == 2.0
    later.share()  # what is read of other gateways' calls leaves it as it is
    assert await later.exhausted() is None and later.spent.money == 2.0
    later.agl_policy_updated(report("a", 1_500_000))  # of a process whose counts began at 0
    assert await later.exhausted() == "budget: money: 5 of 5 are used"
    await store.close()


async def test_a_call_that_is_cancelled_while_it_waits_leaves_no_place_behind(world: Any) -> None:
    gate = asyncio.Event()

    async def answer(request: web.Request, body: dict[str, Any]) -> web.Response:
        await gate.wait()
        return web.json_response(whole(body))

    world.engine.answer = answer
    spending = limit(world, Budget(tokens=10 * CALL))
    first = asyncio.create_task(world.post())
    await world.engine.arrived.wait()
    waiting = asyncio.create_task(world.post())
    await asyncio.sleep(0.05)
    waiting.cancel()
    while not any(call.status == "cancelled" for call in world.store.calls):
        await asyncio.sleep(0.01)
    gate.set()
    assert (await first).status == 200
    assert (await asyncio.gather(*(world.post() for _ in range(4))))[-1].status == 200
    assert spending.account.under_way == 0 and len(world.engine.bodies) == 5
    assert spending.spent.calls == 6  # a call that was given up is one too


async def test_with_prices_alone_calls_are_counted_and_none_waits(world: Any) -> None:
    spending = limit(world)
    answers = await asyncio.gather(*(world.post() for _ in range(5)))
    assert {one.status for one in answers} == {200}
    spent = spending.spent
    assert (spent.calls, spent.tokens, spent.money) == (5, 5 * CALL, 0.0)
