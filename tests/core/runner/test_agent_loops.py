"""Agents of one process share a loop of their own, which no agent ends, and a blocked one keeps to itself."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from contract.running import finish, serving

from agentlightning import emit_reward
from agentlightning.runner import agent_loops, execution
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import RolloutConfig, RolloutStatus


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


async def test_a_loop_on_which_an_agent_ignores_its_end_gets_no_other_rollout(
    store: Store, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CANCEL_SECONDS", 0.05)

    async def agent(task: int) -> float:
        if task == 0:
            gate.wait()
        return 1.0

    once = RolloutConfig(max_attempts=1, timeout_seconds=0.2)
    async with serving(agent, store, concurrency=1) as runner:
        [blocks] = await finish(store, [0], config=once)
        others = await finish(store, [1, 2], config=RolloutConfig(timeout_seconds=300))
    assert blocks.status == RolloutStatus.FAILED and "timeout" in (blocks.reason or "")
    assert {r.status for r in others} == {RolloutStatus.SUCCEEDED} and runner.counts["abandoned"] == 1
