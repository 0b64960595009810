"""The runner on a real store: every end of an attempt is settled, nothing waits for ever, nothing is lost."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.running import finish, reason, serving
from core.runner.across import Event

from agentlightning import emit_annotation, emit_reward
from agentlightning.capture.context import current_attempt
from agentlightning.gateway import AttemptInfo
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import build
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import LLM, Rollout, RolloutConfig, RolloutStatus, UsageError


class FakeGateway:
    """A gateway that only keeps book."""

    url = "http://127.0.0.1:9/v1"
    urls = (url,)

    def __init__(self) -> None:
        self.opened: list[AttemptInfo] = []
        self.closed: list[str] = []

    def open_attempt(self, info: AttemptInfo) -> str:
        self.opened.append(info)
        return f"key-of-{info.attempt_id}"

    async def close_attempt(self, attempt_id: str) -> None:
        self.closed.append(attempt_id)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


async def test_async_agent_returns_its_reward(store: Store) -> None:
    async def agent(task: float) -> float:
        await asyncio.sleep(0)
        return task

    async with serving(agent, store, concurrency=4):
        done = await finish(store, [i / 10 for i in range(10)])
    assert {r.status for r in done} == {RolloutStatus.SUCCEEDED}
    records = await store.records([r.rollout_id for r in done])
    assert sorted(reward.value for record in records for reward in record.rewards) == [
        i / 10 for i in range(10)
    ]


async def test_sync_agents_run_in_threads_and_emit_for_their_own_attempt(store: Store) -> None:
    together = threading.Barrier(4, timeout=300)

    def agent(task: int) -> None:
        together.wait()  # deadlocks unless four run at once
        emit_reward(float(task))

    async with serving(agent, store, concurrency=4):
        done = await finish(store, [0, 1, 2, 3])
    for record in await store.records([r.rollout_id for r in done]):
        assert [reward.value for reward in record.rewards] == [float(record.rollout.input)]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("raise", "agent-raised: RuntimeError: boom"),
        ("nan", "bad-reward: the agent returned nan"),
        ("text", "bad-reward: the agent returned str"),
        ("hang", "timeout: the attempt took longer than 0.05 s"),
    ],
)
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_bad_ends_have_a_reason_and_no_reward(
    store: Store, behaviour: str, reason: str, kind: str
) -> None:
    release = threading.Event()

    def act() -> Any:
        if behaviour == "raise":
            raise RuntimeError("boom")
        return {"nan": float("nan"), "text": "0.5"}.get(behaviour)

    async def agent_async(task: int) -> Any:
        if behaviour == "hang":
            await asyncio.Event().wait()
        return act()

    def agent_sync(task: int) -> Any:
        if behaviour == "hang":
            release.wait(10)
        return act()

    config = RolloutConfig(timeout_seconds=0.05 if behaviour == "hang" else 300)
    async with serving(agent_async if kind == "async" else agent_sync, store):
        [rollout] = await finish(store, [1], config=config)
        release.set()
    assert rollout.status == RolloutStatus.FAILED
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None and (attempt.reason or "").startswith(reason)
    [record] = await store.records([rollout.rollout_id])
    assert record.rewards == []


async def test_agent_gets_its_key_and_the_key_ends_with_the_attempt(store: Store) -> None:
    gate = FakeGateway()
    seen: dict[str, str | None] = {}

    async def agent(task: int, llm: LLM, judge: LLM) -> float:
        context = current_attempt()
        assert context is not None and context.key == llm.api_key and context.gateway == gate.url
        assert judge.api_key == "vendor"  # an endpoint that is not the gateway keeps its own key
        assert context.attempt_id not in gate.closed
        seen[context.attempt_id] = llm.api_key
        return 1.0

    resources = await store.add_resources(
        {
            "llm": LLM(endpoint=gate.url, model="policy"),
            "judge": LLM(endpoint="http://other/v1", model="m", api_key="vendor"),
        }
    )
    async with serving(agent, store, attempt_keys=gate):
        await finish(store, [1, 2], resources_id=resources.resources_id, metadata={"greedy": True}, seed=5)
    assert seen == {i.attempt_id: f"key-of-{i.attempt_id}" for i in gate.opened}
    assert sorted(gate.closed) == sorted(seen)
    assert all(i.greedy and i.seed == 5 for i in gate.opened)


async def test_hooks_hear_begin_and_end(store: Store) -> None:
    heard: list[tuple[str, str]] = []

    class Listener:
        @hookimpl
        def agl_rollout_started(self, rollout: Rollout) -> None:
            heard.append(("started", rollout.rollout_id))

        @hookimpl
        def agl_rollout_finished(self, rollout: Rollout) -> None:
            heard.append(("finished", rollout.rollout_id))

    async with serving(lambda task: 1.0, store, plugins=build([Listener()], discover=False)):
        [rollout] = await finish(store, [1])
    assert heard == [("started", rollout.rollout_id), ("finished", rollout.rollout_id)]


async def test_retry_after_failure_when_the_condition_allows(store: Store) -> None:
    from agentlightning.types import AttemptStatus

    tries: list[int] = []

    async def agent(task: int) -> float:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("flaky")
        return 1.0

    config = RolloutConfig(max_attempts=3, retry_condition=[AttemptStatus.FAILED])
    async with serving(agent, store):
        [rollout] = await finish(store, [1], config=config)
    assert rollout.status == RolloutStatus.SUCCEEDED and rollout.attempts == 3
    assert [a.status for a in await store.query_attempts(rollout.rollout_id)] == [
        "failed",
        "failed",
        "succeeded",
    ]


async def test_stop_finishes_what_runs(store: Store) -> None:
    started, go = Event(), Event()

    async def agent(task: int) -> float:
        started.set()
        await go.wait()
        return 1.0

    rollout = await store.enqueue_rollout(1)
    async with serving(agent, store):
        await started.wait()
        asyncio.get_running_loop().call_later(0.05, go.set)
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == RolloutStatus.SUCCEEDED


async def test_a_store_that_cannot_be_written_ends_serving(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(store, "update_attempt", full)
    await store.enqueue_rollout(1)
    with pytest.raises(OSError, match="no space left"):
        await asyncio.wait_for(Runner(lambda task: 1.0, store).serve(), 300)


async def test_step_runs_one_task_without_the_queue(store: Store) -> None:
    rollout = await Runner(lambda task: task / 2, store).step(3)
    assert rollout.status == RolloutStatus.SUCCEEDED
    [record] = await store.records([rollout.rollout_id])
    assert [r.value for r in record.rewards] == [1.5]


async def test_hung_sync_agents_take_no_place_from_the_next(store: Store) -> None:
    forever = threading.Event()

    def agent(task: int) -> float:
        if task < 2:
            forever.wait(20)
        return 1.0

    async with serving(agent, store, concurrency=2, timeout_seconds=0.1):
        done = await finish(store, [0, 1, 2, 3])
        forever.set()
    assert [r.status for r in sorted(done, key=lambda r: r.input)] == [
        "failed",
        "failed",
        "succeeded",
        "succeeded",
    ]


async def test_dequeue_is_limited_by_concurrency(store: Store) -> None:
    running, most = 0, 0

    async def agent(task: int) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return 1.0

    async with serving(agent, store, concurrency=3):
        await finish(store, list(range(12)))
    assert most == 3


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_agent_that_exits_ends_its_attempt_only(store: Store, kind: str) -> None:
    async def agent_async(task: int) -> float:
        sys.exit(0)

    def agent_sync(task: int) -> float:
        sys.exit(0)

    async with serving(agent_async if kind == "async" else agent_sync, store):
        done = await finish(store, [1, 2])
    assert [await reason(store, r) for r in done] == ["agent-raised: SystemExit: 0"] * 2


async def test_the_limit_holds_for_an_agent_that_swallows_cancellation(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentlightning.runner import execution as module

    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.02)
    release = Event()

    async def agent(task: int) -> float:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    async with serving(agent, store, timeout_seconds=0.05) as runner:
        [rollout] = await finish(store, [1])
        release.set()
    assert await reason(store, rollout) == "timeout: the attempt took longer than 0.05 s"
    assert runner.counts["abandoned"] == 1
    [record] = await store.records([rollout.rollout_id])
    assert record.rewards == []


async def test_the_agents_own_timeout_is_its_own(store: Store) -> None:
    async def agent(task: int) -> float:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        return 1.0

    async with serving(agent, store, timeout_seconds=300):
        [rollout] = await finish(store, [1])
    assert (await reason(store, rollout)).startswith("agent-raised: TimeoutError")


async def test_values_of_array_libraries_can_be_emitted(store: Store) -> None:
    async def agent(task: int) -> None:
        emit_annotation({"x": np.float64(1.5), "y": np.int64(2), "z": np.array(3.0)})
        emit_reward(1.0, attributes={"score": np.float32(0.5)})

    async with serving(agent, store):
        [rollout] = await finish(store, [1])
    assert rollout.status == RolloutStatus.SUCCEEDED


async def leases_left(store: Store, runs_at: Store, how: str) -> set[RolloutStatus]:
    """Serve ``runs_at`` twenty times, each for a moment; how the rollouts are that were put in ``store``."""
    ids: list[str] = []
    for i in range(20):
        stop = asyncio.Event()
        runner = asyncio.create_task(
            Runner(lambda task: 1.0, runs_at, RunnerSection(concurrency=2)).serve(stop)
        )
        await asyncio.sleep(0.002 * (i % 4))
        ids += [(await store.enqueue_rollout(i)).rollout_id]
        if how == "stop":
            stop.set()
        else:
            runner.cancel()
        await asyncio.wait({runner})
    return {r.status for r in await store.query_rollouts(rollout_ids=ids) if not r.status.final}


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_no_lease_is_lost_when_serving_ends(tmp_path: Path, how: str) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    assert await leases_left(store, store, how) <= {RolloutStatus.QUEUING}  # nothing leased to nobody
    await store.close()


async def test_serving_that_ends_stops_late_rollouts_after_a_while(store: Store) -> None:
    started = Event()

    async def agent(task: int) -> float:
        started.set()
        await asyncio.Event().wait()
        return 1.0

    rollout = await store.enqueue_rollout(1)
    async with serving(agent, store, drain=0.02):
        await started.wait()
    assert await reason(store, rollout) == "cancelled: the attempt was stopped from outside"


async def test_no_place_is_an_error(store: Store) -> None:
    with pytest.raises(UsageError, match="concurrency is 0"):
        Runner(lambda task: 1.0, store, RunnerSection(concurrency=0))
