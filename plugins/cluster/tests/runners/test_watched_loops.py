"""Agents that block their event loop are reported, time out, and do not stop other agents."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from pathlib import Path

import pytest
from contract.running import finish, serving
from core.runner.test_agent_loops import *  # noqa: F403 - its tests hold for watched loops too
from core.runner.test_agent_loops import gate as gate, store as store

from agentlightning.runner import execution
from agentlightning.store import Store
from agentlightning.types import RolloutConfig, RolloutStatus
from agl_cluster.runners import watched_loops
from agl_cluster.runners.watched_loops import current_loop_pool

AGAIN = RolloutConfig(timeout_seconds=2.0, max_attempts=3, retry_on=["cancelled"])


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watchdog ping often."""
    monkeypatch.setattr(watched_loops, "PING_SECONDS", 0.01)
    monkeypatch.setattr(watched_loops, "WARN_AFTER", 0.05)
    monkeypatch.setattr(execution, "CANCEL_SECONDS", 0.05)


@pytest.mark.usefixtures("hasty")
@pytest.mark.slow
async def test_one_that_blocks_for_ever_times_out_and_fifteen_finish(
    store: Store, gate: threading.Event
) -> None:
    async def agent(task: int) -> float:
        await asyncio.sleep(0)
        if task == 5:
            gate.wait()
        return 1.0

    async with serving(agent, store, concurrency=16) as runner:
        done = await finish(store, list(range(16)), config=AGAIN)
        after = await finish(store, [16, 17], config=AGAIN)
    failed = [r for r in done if r.status != RolloutStatus.SUCCEEDED]
    assert [r.input for r in failed] == [5]
    assert failed[0].reason is not None and failed[0].reason.startswith("timeout:")
    assert Path(__file__).name in failed[0].reason and "gate.wait()" in failed[0].reason
    assert {r.status for r in after} == {RolloutStatus.SUCCEEDED}
    assert runner.counts["abandoned"] == 1


@pytest.mark.usefixtures("hasty")
@pytest.mark.slow
async def test_all_of_them_block_longer_than_the_limit_and_each_is_settled(
    store: Store, gate: threading.Event
) -> None:
    async def agent(task: int) -> float:
        gate.wait()
        return 1.0

    async with serving(agent, store, concurrency=4) as runner:
        done = await finish(store, list(range(4)), config=AGAIN)
    assert {r.status for r in done} == {RolloutStatus.FAILED}
    assert all((r.reason or "").startswith("timeout:") for r in done)
    assert runner.counts["abandoned"] == 4


@pytest.mark.usefixtures("hasty")
async def test_the_line_is_named_once_with_the_mend(
    store: Store, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    async def agent(task: int) -> float:
        gate.wait()
        return 1.0

    config = RolloutConfig(timeout_seconds=0.2)
    with caplog.at_level(logging.WARNING, "agentlightning.runner"):
        async with serving(agent, store, concurrency=1) as runner:
            await finish(store, [1, 2, 3], config=config)
    [said] = [r.getMessage() for r in caplog.records if "blocks its event loop for" in r.getMessage()]
    assert f"{Path(__file__)}:{agent.__code__.co_firstlineno + 1} in agent: `gate.wait()`" in said
    assert "ainvoke" in said and "plain `def`" in said and "isolation: process" in said
    assert runner.counts["loop-blocked"] == 1


@pytest.mark.usefixtures("hasty")
async def test_many_that_take_a_little_each_are_not_blamed(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Together they hold the loop for many pings, each for two of them at the same line."""
    monkeypatch.setattr(watched_loops, "WARN_AFTER", 0.08)
    pool, missed = current_loop_pool(), list[int]()

    async def agent(task: int) -> float:
        [loop] = [one for one in pool._loops if one.shared]
        arrived.append(task)
        if len(arrived) == 8:
            together.set()
        await together.wait()  # all run in one turn of the loop
        until = loop.missed_pings + 2
        while loop.missed_pings < until:
            time.sleep(0.001)
        missed.append(loop.missed_pings)
        return 1.0

    arrived, together = list[int](), asyncio.Event()
    with caplog.at_level(logging.WARNING, "agentlightning.runner"):
        async with serving(agent, store, concurrency=8) as runner:
            await finish(store, [*range(8)])
    assert max(missed) > 8, "the loop was held for longer than the limit"
    assert not [r for r in caplog.records if "blocks its event loop for" in r.getMessage()]
    assert runner.counts["loop-blocked"] == 0


@pytest.mark.usefixtures("hasty")
async def test_nobody_is_blamed_while_the_machine_is_busy(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same line of one agent holds the loop for many pings, all of which come late."""
    monkeypatch.setattr(watched_loops, "LATE_AFTER", -1.0)
    pool, missed = current_loop_pool(), list[int]()

    async def agent(task: int) -> float:
        [loop] = [one for one in pool._loops if one.shared]
        while loop.missed_pings < 8:
            time.sleep(0.001)
        missed.append(loop.missed_pings)
        return 1.0

    with caplog.at_level(logging.WARNING, "agentlightning.runner"):
        async with serving(agent, store, concurrency=1) as runner:
            await finish(store, [1])
    assert missed[0] * watched_loops.PING_SECONDS > watched_loops.WARN_AFTER
    assert not [r for r in caplog.records if "blocks its event loop for" in r.getMessage()]
    assert runner.counts["loop-blocked"] == 0


@pytest.mark.usefixtures("hasty")
async def test_the_agents_own_line_is_named_where_a_library_waits(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async def agent(task: int) -> float:
        return float(queue.Queue[int]().get(timeout=0.3))

    with caplog.at_level(logging.WARNING, "agentlightning.runner"):
        async with serving(agent, store, concurrency=1):
            await finish(store, [1], config=RolloutConfig(max_attempts=1))
    [said] = [r.getMessage() for r in caplog.records if "blocks its event loop for" in r.getMessage()]
    assert f"{Path(__file__)}:{agent.__code__.co_firstlineno + 1} in agent" in said and "queue.py" not in said


@pytest.mark.usefixtures("hasty")
async def test_without_a_limit_the_others_get_another_loop_and_the_blocked_one_goes_on(
    store: Store, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_loops, "ABANDON_AFTER", 0.1)

    async def agent(task: int) -> float:
        if task == 0:
            gate.wait()
        return 1.0

    async with serving(agent, store, concurrency=4) as runner:
        blocked = await store.enqueue_rollout(0)
        others = await finish(store, [1, 2, 3])
        assert {r.status for r in others} == {RolloutStatus.SUCCEEDED}
        gate.set()
        [late] = await store.wait_for_rollouts([blocked.rollout_id], timeout=300)
    assert late.status == RolloutStatus.SUCCEEDED
    assert runner.counts["succeeded"] == 4


@pytest.mark.usefixtures("hasty")
async def test_one_that_had_begun_and_is_not_tried_again_waits_for_the_loop(
    store: Store, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_loops, "ABANDON_AFTER", 0.1)
    both = asyncio.Event()
    here: list[int] = []

    async def agent(task: int) -> float:
        here.append(task)
        if len(here) == 2:
            both.set()
        await both.wait()
        if task == 0:
            gate.wait()
        return 1.0

    async with serving(agent, store, concurrency=3) as runner:
        ids = [(await store.enqueue_rollout(task)).rollout_id for task in (0, 1)]
        while len(here) < 2:
            await asyncio.sleep(0.01)
        [new] = await finish(store, [2])  # on a loop of its own
        assert new.status == RolloutStatus.SUCCEEDED
        gate.set()
        done = await store.wait_for_rollouts(ids, timeout=300)
    assert {r.status for r in done} == {RolloutStatus.SUCCEEDED}
    assert runner.counts["succeeded"] == 3
