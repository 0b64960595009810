"""Leases: heartbeats are as frequent as rollouts need them, and a lost lease stops its agent."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.running import reason, serving

from agentlightning.capture.emit import emit_reward
from agentlightning.gateway import AttemptInfo
from agentlightning.keys import CONTEXT_KEY
from agentlightning.runner.attempt import with_attempt_key
from agentlightning.runner.heartbeat import Heartbeat
from agentlightning.runner.outcome import CannotRun
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import AttemptEnded, SQLiteStore, Store
from agentlightning.types import LLM, PromptTemplate, RolloutConfig, RolloutStatus


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


async def test_signs_of_life_are_as_frequent_as_the_shortest_silence_needs() -> None:
    beats: queue.Queue[list[str]] = queue.Queue()

    class Ward(Store):
        async def heartbeat(
            self, worker_id: str, attempt_ids: Any = (), *args: Any, **given: Any
        ) -> list[str]:
            beats.put(attempt_ids)
            return ["b"] if "b" in attempt_ids else []

    async def beat() -> list[str]:
        return await asyncio.to_thread(beats.get, timeout=300)

    lost: list[str] = []
    counts: Counter[str] = Counter()
    heart = Heartbeat(Ward(), "w", 3600.0, lost.append, counts)
    heart.start()
    heart.add("a", None)
    assert heart.interval == 3600.0
    heart.add("b", 0.04)
    assert heart.interval == 0.01
    assert await beat() == ["a", "b"]  # it did not wait for the hour to pass
    while not lost:
        await asyncio.sleep(0.01)
    assert lost == ["b"] and counts == {"lease-lost": 1} and heart.interval == 3600.0
    heart.add("c", 0.04)
    while await beat() != ["a", "c"]:
        pass
    for _ in range(3):
        assert await beat() == ["a", "c"]
    heart.discard("c")
    assert heart.interval == 3600.0
    await heart.stop()


async def test_a_heartbeat_that_fails_is_counted_and_the_next_is_sent() -> None:
    answers: queue.Queue[int] = queue.Queue()

    class Ward(Store):
        tries = 0

        async def heartbeat(
            self, worker_id: str, attempt_ids: Any = (), *args: Any, **given: Any
        ) -> list[str]:
            self.tries += 1
            answers.put(self.tries)
            if self.tries == 1:
                raise OSError("the disk is full")
            return []

    counts: Counter[str] = Counter()
    heart = Heartbeat(Ward(), "w", 0.01, lambda attempt: None, counts)
    heart.start()
    heart.start()  # as often as it is stopped
    await heart.stop()
    for number in (1, 2, 3):
        assert await asyncio.to_thread(answers.get, timeout=300) == number
    await heart.stop()
    assert counts == {"heartbeat-failed": 1}
    assert not [one for one in threading.enumerate() if one.name == "heartbeat-w"]


async def test_a_stop_does_not_wait_for_an_answer_that_never_comes() -> None:
    asked = threading.Event()

    class Ward(Store):
        async def heartbeat(
            self, worker_id: str, attempt_ids: Any = (), *args: Any, **given: Any
        ) -> list[str]:
            asked.set()
            await asyncio.Event().wait()
            return []

    heart = Heartbeat(Ward(), "w", 0.01, lambda attempt: None, Counter())
    heart.start()
    await asyncio.to_thread(asked.wait, 30)
    await asyncio.wait_for(heart.stop(), 300)


async def test_short_silences_do_not_cost_a_living_attempt(store: Store) -> None:
    async def agent(task: Any) -> float:
        await asyncio.sleep(1.2)
        return 1.0

    config = RolloutConfig(unresponsive_seconds=0.8)
    rollout = await store.enqueue_rollout(1, config=config)
    async with serving(agent, store, heartbeat=3600.0):
        [done] = await store.wait_for_rollouts([rollout.rollout_id], timeout=300)
    assert done.status == RolloutStatus.SUCCEEDED and done.attempts == 1


async def test_a_lost_lease_stops_the_agent_and_its_late_writes_are_refused(store: Store) -> None:
    assert not (await counts_of_a_lost_lease(store, hang))["killed"]


async def counts_of_a_lost_lease(store: Store, agent: Any, **options: Any) -> Counter[str]:
    """Take the lease of a task on which the agent hangs from its runner, and return the runner's counts."""
    async with serving(agent, store, heartbeat=0.05, concurrency=1, **options) as runner:
        rollout = await store.enqueue_rollout("spin")
        while not runner.running:
            await asyncio.sleep(0.01)
        [first] = await store.query_attempts(rollout.rollout_id)
        taken = await store.start_attempt(rollout.rollout_id, worker_id="another")
        while runner.running:
            await asyncio.sleep(0.01)
        assert runner.counts["lease-lost"] == 1 and runner.counts["fenced"] == 1
        await store.update_attempt(rollout.rollout_id, taken.attempt.attempt_id, "succeeded")  # type: ignore[arg-type]
    with pytest.raises(AttemptEnded):
        await store.update_attempt(rollout.rollout_id, first.attempt_id, "succeeded")  # type: ignore[arg-type]
    refused = (await store.counts())["refused"]
    assert sum(refused.values()) >= 2
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == RolloutStatus.SUCCEEDED
    return runner.counts


async def hang(task: Any) -> float:
    try:
        await asyncio.Event().wait()
    finally:
        emit_reward(1.0)  # while it is being stopped: kept by the runner, refused by the store
    return 1.0


async def test_stopping_all_settles_each_as_cancelled(store: Store) -> None:
    rollouts = [await store.enqueue_rollout(i) for i in range(3)]
    async with serving(hang, store) as runner:
        while runner.running < 3:
            await asyncio.sleep(0.01)
        runner.stop_all()
        await store.wait_for_rollouts([r.rollout_id for r in rollouts], timeout=300)
    for rollout in rollouts:
        assert (await reason(store, rollout)).startswith("cancelled")


async def test_a_stop_is_noticed_while_every_place_is_taken(store: Store) -> None:
    rollout = await store.enqueue_rollout(1)
    async with serving(hang, store, concurrency=1, drain=0.05) as runner:
        while not runner.running:
            await asyncio.sleep(0.01)
    assert (await reason(store, rollout)).startswith("cancelled")


# ------------------------------------------------------------------------------------------ keys of gateways
INFO = AttemptInfo(rollout_id="ro-1", attempt_id="at-1")


class Book:
    """A gateway that returns one key."""

    url = "http://127.0.0.1:9/v1"
    urls = (url,)

    def open_attempt(self, info: Any) -> str:
        return "key"

    async def close_attempt(self, attempt_id: str) -> None:
        return None


def test_keys_go_to_our_gateway_only() -> None:
    ours = LLM(endpoint="http://127.0.0.1:7/v1", model="m", api_key=CONTEXT_KEY)
    at_gate = LLM(endpoint=Book.url, model="m")
    theirs = LLM(endpoint="https://vendor/v1", model="m", api_key="vendor")
    text = PromptTemplate(template="x")
    found, key, url = with_attempt_key({"a": ours, "b": theirs, "c": text}, Book(), INFO)
    assert (key, url) == ("key", "http://127.0.0.1:7/v1")
    assert found["a"].api_key == "key" and found["b"] is theirs and found["c"] is text  # type: ignore[union-attr]
    found, key, url = with_attempt_key({"a": at_gate}, Book(), INFO)
    assert found["a"].api_key == "key" and url == Book.url  # type: ignore[union-attr]
    assert with_attempt_key({"b": theirs}, None, INFO) == ({"b": theirs}, None, None)
    with pytest.raises(CannotRun, match="several gateways"):
        with_attempt_key({"a": ours, "c": at_gate}, Book(), INFO)
    with pytest.raises(CannotRun, match="set AGL_SECRET to the same value"):
        with_attempt_key({"a": ours}, None, INFO)


async def test_without_a_gate_for_its_gateway_serving_ends_and_the_rollout_may_be_tried_elsewhere(
    store: Store,
) -> None:
    await store.add_resources({"llm": LLM(endpoint="http://g/v1", model="m", api_key=CONTEXT_KEY)})
    config = RolloutConfig(max_attempts=2, retry_on=["cancelled"])
    rollout = await store.enqueue_rollout(1, config=config)
    with pytest.raises(CannotRun, match="points at the gateway http://g/v1"):
        await asyncio.wait_for(Runner(hang, store, RunnerSection(concurrency=1), drain=0.0).serve(), 10)
    assert (await store.get_rollout_by_id(rollout.rollout_id)).attempts >= 1
    assert (await reason(store, rollout)).startswith("cancelled: resource 'llm' points at")


def test_an_attempt_keeps_to_one_of_its_runs_gateways() -> None:
    urls = [f"http://127.0.0.1:{port}/v1" for port in (7, 8, 9)]
    ours = LLM(endpoint=urls[0], replicas=urls[1:], model="m", api_key=CONTEXT_KEY)
    chosen = set()
    for number in range(30):
        info = AttemptInfo(rollout_id="ro", attempt_id=f"at-{number}")
        found, _, url = with_attempt_key({"a": ours, "b": ours}, Book(), info)
        for resource in found.values():
            assert isinstance(resource, LLM) and resource.endpoint == url and not resource.replicas
        chosen.add(url)
    assert chosen == set(urls)
    other = LLM(endpoint=urls[0], model="m", api_key=CONTEXT_KEY)
    with pytest.raises(CannotRun, match="several gateways"):
        with_attempt_key({"a": ours, "b": other}, Book(), INFO)
