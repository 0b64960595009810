"""Agents that block their event loop are reported, time out, and do not stop other agents."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.running import finish, serving

from agentlightning import emit_reward
from agentlightning.runner import agent_loops, execution
from agentlightning.runner.agent_loops import current_loop_pool
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import RolloutConfig, RolloutStatus

AGAIN = RolloutConfig(timeout_seconds=0.5, max_attempts=3, retry_on=["cancelled"])


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that a blocking call waits for. It is set at the end, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watchdog ping often."""
    monkeypatch.setattr(agent_loops, "PING_SECONDS", 0.01)
    monkeypatch.setattr(agent_loops, "WARN_AFTER", 0.05)
    monkeypatch.setattr(execution, "CANCEL_SECONDS", 0.05)


@pytest.mark.usefixtures("hasty")
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
    monkeypatch.setattr(agent_loops, "WARN_AFTER", 0.08)
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
async def test_without_a_limit_the_others_get_another_loop_and_the_blocked_one_goes_on(
    store: Store, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_loops, "ABANDON_AFTER", 0.1)

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
    monkeypatch.setattr(agent_loops, "ABANDON_AFTER", 0.1)
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


async def test_rollouts_share_one_loop_and_what_is_bound_to_it(store: Store) -> None:
    lock, seen = asyncio.Lock(), set()

    async def agent(task: int) -> float:
        seen.add((asyncio.get_running_loop(), threading.current_thread()))
        async with lock:  # contended, so bound to the loop that waits
            await asyncio.sleep(0)
        return 1.0

    async with serving(agent, store, concurrency=8):
        done = await finish(store, list(range(8)))
    async with serving(agent, store, concurrency=8):  # a second runner of the process
        done += await finish(store, list(range(8)))
    assert {r.status for r in done} == {RolloutStatus.SUCCEEDED}
    assert len(seen) == 1
    [(loop, thread)] = seen
    assert loop is not asyncio.get_running_loop() and thread is not threading.main_thread()


async def test_what_is_set_around_serving_holds_in_the_agent(store: Store) -> None:
    colour = contextvars.ContextVar("colour", default="none")
    colour.set("green")

    async def child() -> None:
        emit_reward(1.0 if colour.get() == "green" else 0.0)

    async def agent(task: int) -> None:
        await asyncio.gather(asyncio.create_task(child()))

    async with serving(agent, store):
        [rollout] = await finish(store, [1])
    [record] = await store.records([rollout.rollout_id])
    assert [reward.value for reward in record.rewards] == [1.0]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("where", ["itself", "in a task", "in a thread"])
async def test_what_an_agent_raises_ends_its_attempt_only(
    store: Store, error: type[BaseException], where: str
) -> None:
    def raises() -> Any:
        raise error

    async def raises_later() -> Any:
        raise error

    async def agent(task: int) -> Any:
        if task == 1:
            return 1.0
        if where == "in a task":
            return await asyncio.create_task(raises_later())
        return raises()

    def sync_agent(task: int) -> Any:
        return 1.0 if task == 1 else raises()

    async with serving(sync_agent if where == "in a thread" else agent, store, concurrency=2):
        bad, good = await finish(store, [0, 1], config=RolloutConfig(timeout_seconds=300))
    assert {bad.input: bad.status, good.input: good.status} == {
        0: RolloutStatus.FAILED,
        1: RolloutStatus.SUCCEEDED,
    }


async def test_an_agent_that_stops_its_loop_stops_nobody(store: Store) -> None:
    async def agent(task: int) -> float:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return 1.0

    async with serving(agent, store, concurrency=2):
        done = await finish(store, [1, 2, 3])
    assert {r.status for r in done} == {RolloutStatus.SUCCEEDED}


def test_the_thread_of_agents_ends_with_the_loop_that_serves() -> None:
    threads: list[threading.Thread] = []

    async def agent(task: int) -> float:
        threads.append(threading.current_thread())
        return 1.0

    async def main() -> None:
        opened = SQLiteStore(":memory:")
        async with serving(agent, opened):
            await finish(opened, [1])
        await opened.close()

    asyncio.run(main())
    threads[0].join(300)
    assert not threads[0].is_alive()


def test_a_blocked_agent_does_not_keep_the_loop_that_serves_from_ending(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CANCEL_SECONDS", 0.05)
    monkeypatch.setattr(agent_loops, "STOP_SECONDS", 0.05)
    begun = threading.Event()
    opened = SQLiteStore(":memory:")

    async def agent(task: int) -> float:
        begun.set()
        gate.wait()
        return 1.0

    async def main() -> None:
        async with serving(agent, opened, drain=0.0):
            await opened.enqueue_rollout(1)
            while not begun.is_set():
                await asyncio.sleep(0.01)
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # as Ctrl-C does
            await asyncio.sleep(10)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    asyncio.run(opened.close())
