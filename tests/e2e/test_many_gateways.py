"""A run whose gateways are processes of their own: what holds with one holds with several."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from e2e.test_deterministic import digests, trainer as deterministic
from e2e.test_line import THREAD, Watch, trainer
from openai import AsyncOpenAI

import agentlightning as agl
from agentlightning.algorithms.context import Context
from agl_cluster.gateways.pool import GatewayProcesses
from calc_x.agent import solve
from calc_x.datasets import load

TASKS = [3, 5, 8, 13]


async def talk(task: int, llm: agl.LLM) -> float:
    """Two turns."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        asked: dict[str, Any] = {"model": llm.model, "max_tokens": 4}
        turns: list[Any] = [{"role": "user", "content": f"{task} coins"}]
        with agl.tagged(agent="one"):
            first = await client.chat.completions.create(messages=turns, **asked)
            said = first.choices[0].message.content or ""
            turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
            second = await client.chat.completions.create(messages=turns, **asked)
            said += second.choices[0].message.content or ""
    return float(sum(map(ord, said)) % 5)


@pytest.mark.slow
async def test_a_run_is_the_same_with_one_gateway_and_with_two_processes(tmp_path: Path) -> None:
    found = {}
    for gateways in (0, 2):
        watch = Watch()
        made = deterministic(tmp_path / str(gateways), watch, gateways=gateways)
        summary = await made.afit(talk, TASKS)
        found[gateways] = digests(watch), summary["totals"]["calls"], summary["totals"]["calls_exact"]
    assert found[0] == found[2]
    assert found[2][1] == found[2][2] == 2 * 2 * 4  # steps × turns × rollouts


@pytest.mark.slow
async def test_kill_9_of_a_gateway_loses_no_answered_call_and_the_run_goes_on(tmp_path: Path) -> None:
    answered: list[str] = []
    killed: list[int] = []

    async def watched(task: int, llm: agl.LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=6) as client:
            for turn in range(4):
                asked: list[Any] = [{"role": "user", "content": f"{task} coins, {turn}"}]
                made = await client.chat.completions.create(model=llm.model, messages=asked, max_tokens=4)
                answered.append(made.id)
                if len(answered) in (9, 40):
                    gateways = context.gateway
                    assert isinstance(gateways, GatewayProcesses)
                    killed.append(gateways.pids[len(killed)])
                    os.kill(killed[-1], signal.SIGKILL)
        return float(task % 2)

    options = {"gateways": 2, "output": tmp_path, "trackers": [], "max_attempts": 3}
    async with deterministic(tmp_path, Watch(), **options).session(watched) as context:
        assert isinstance(context, Context)
        evaluation = await context.evaluate(list(range(16)), name="x")
        rollouts = await context.store.query_rollouts(run_id=context.run_id)
        stored = [c for r in rollouts for c in await context.store.query_calls(r.rollout_id, None)]
        accounts = await context.accounts()
    assert len(killed) == 2 and evaluation.failed == 0
    assert accounts["gateway"]["gateways-ended"] == 2
    assert sorted(answered) and set(answered) <= {call.response_id for call in stored}
    assert len({call.call_id for call in stored}) == len(stored)


@pytest.mark.slow
async def test_a_run_trains_through_three_gateways_and_its_ledger_adds_up(tmp_path: Path) -> None:
    watch = Watch()
    made = trainer(tmp_path, watch, gateways=3, evaluate_sampled=False, options=THREAD)
    summary = await made.afit(solve, load("generated:train", limit=50))
    totals = summary["totals"]
    assert totals["rollouts"] == 24 and totals["calls"] == totals["calls_exact"] == watch.calls >= 24
    assert summary["accounts"] == {}
    assert all(ledger.sums and ledger.made == ledger.recorded for b in watch.batches for ledger in b.ledgers)
    assert [
        {v for row in b.rows for v, m in zip(row.versions, row.mask, strict=True) if m} for b in watch.batches
    ] == [{0}, {1}]


@pytest.mark.slow
async def test_a_budget_is_that_of_all_gateways(tmp_path: Path) -> None:
    watch = Watch()
    made = trainer(
        tmp_path,
        watch,
        gateways=2,
        budget={"calls": 30},
        steps=8,
        batch_size=2,
        evaluate_sampled=False,
        options=THREAD,
    )
    train = load("generated:train", limit=50)
    summary = await made.afit(solve, train)
    budget = summary["budget"]
    assert summary["ended"].startswith("stopped by budget: calls") and summary["steps"] < 8
    # each gateway alone made fewer: what the others have recorded was read from the store
    assert budget["spent"]["calls"] >= 30
    assert watch.calls == budget["spent"]["calls"] + budget["refused"]


@pytest.mark.slow
async def test_runs_of_several_gateways_have_a_list_of_them(tmp_path: Path) -> None:
    async with deterministic(tmp_path, Watch(), gateways=2).session(talk) as context:
        (run,) = await context.store.query_runs()
        about = run["about"] if isinstance(run, dict) else run.info["about"]
        assert about["gateways"] == list(context.gateway.urls) and len(about["gateways"]) == 2
        await asyncio.sleep(0)
