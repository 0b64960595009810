"""Every cell of the failure table on real parts: runner, gateway, store, credit; only the model is a script.

Each kind of failure meets each action, and what is checked is what a person would ask for: how often it was
tried, how it ended and why, whether it is trained or moves a baseline, and that the ledger accounts for every
request the model server saw.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import httpx
import msgspec
import openai
import pytest
from agl_testing import Reply, ScriptedModelServer

from agentlightning.credit import assign, failure_of
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore
from agentlightning.types import LLM, AttemptStatus, Batch, Recipe, Rollout, RolloutConfig, RolloutStatus
from agentlightning.types.failure import failure_kind, read_failure_table

RECIPE = Recipe(name="t")
ATTEMPTS = 2
TIMEOUT = 3600.5
"""Seconds of an attempt that hangs. They are over when it hangs: see ``World.call_later``."""
WINDOW = 400
"""Tokens of the scripted model's context."""


def reply(body: dict[str, Any]) -> Any:
    """What the model says: an error where the prompt asks for one."""
    said = str(body["messages"][-1]["content"])
    if said.startswith("status "):
        return Reply(status=int(said.removeprefix("status ")), message="as you asked")
    return "ok"


class World:
    """Agent, runner, gateway, store and model server of one test."""

    def __init__(self, store: SQLiteStore, gateway: Gateway, server: ScriptedModelServer, llm: str) -> None:
        self.store, self.gateway, self.server, self.resources_id = store, gateway, server, llm
        self.client = openai.AsyncOpenAI(
            base_url=gateway.url, api_key="none", max_retries=0, http_client=httpx.AsyncClient(verify=False)
        )
        self.loop = asyncio.get_running_loop()
        """The runner's; an agent has one of its own."""
        self.hanging: asyncio.Queue[str] = asyncio.Queue()
        """Rollouts whose agent waits for being stopped."""
        self.time_is_up: Callable[[], object] = lambda: None
        """Ends the limit of the attempt that began last of those that have one."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **more: Any) -> Any:
        """In place of the event loop's: an attempt's limit ends when the test says so, not by the clock."""
        if delay == TIMEOUT:
            self.time_is_up = partial(callback, *args)
        return asyncio.BaseEventLoop.call_later(self.loop, delay, callback, *args, **more)

    async def agent(self, task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
        """A call that is answered, then the failure that the task asks for, on the attempts it names."""
        fails = task.get("fails", ATTEMPTS)
        kind = task["kind"] if rollout.attempts <= fails else "none"
        if kind == "no-call":
            return 1.0
        await self.ask(llm, "hello")
        if kind == "agent-raised":
            raise RuntimeError("no such tool")
        if kind == "bad-reward":
            return math.nan
        if kind in ("timeout", "cancelled", "cancelled-rollout"):
            self.loop.call_soon_threadsafe(self.hanging.put_nowait, rollout.rollout_id)
            await asyncio.Event().wait()
        if kind in PROMPTS:
            await self.ask(llm, PROMPTS[kind])
        return float(task["reward"])

    async def ask(self, llm: LLM, text: str) -> None:
        """One model call, by the attempt's key."""
        client = self.client.with_options(api_key=llm.api_key)
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": text}])

    async def run(self, tasks: list[dict[str, Any]], table: dict[str, Any], mode: Any = "train") -> list[str]:
        """Roll the tasks out as one group, until all have ended."""
        settings = RunnerSection(timeout_seconds=None, max_attempts=ATTEMPTS)
        config = settings.rollout_config(read_failure_table(table))
        rollouts = [
            Rollout(
                rollout_id=f"r{n}",
                input=task,
                mode=mode,
                group_id="g",
                sample=n,
                resources_id=self.resources_id,
                config=config if task["kind"] != "timeout" else timed(config),
            )
            for n, task in enumerate(tasks)
        ]
        ids = [r.rollout_id for r in await self.store.enqueue_many_rollouts(rollouts)]
        ended = asyncio.create_task(self.store.wait_for_rollouts(ids))
        while not ended.done():
            await self._serve(ended, {r.rollout_id: r.input["kind"] for r in rollouts})
        return ids

    async def _serve(self, ended: asyncio.Task[Any], kinds: dict[str, str]) -> None:
        """A runner until all has ended, or somebody is to be stopped: then it is, as by SIGTERM."""
        stop = asyncio.Event()
        runner = Runner(
            self.agent,
            self.store,
            RunnerSection(concurrency=32),
            attempt_keys=self.gateway,
            heartbeat=0.02,
            drain=0.0,
        )
        serving = asyncio.create_task(runner.serve(stop))
        while not ended.done():
            hung = asyncio.create_task(self.hanging.get())
            await asyncio.wait({ended, hung}, return_when=asyncio.FIRST_COMPLETED)
            if not hung.done():
                hung.cancel()
                break
            if kinds[hung.result()] == "timeout":
                self.time_is_up()
            if kinds[hung.result()] == "cancelled":
                await self.store.wait_for_rollouts([i for i, kind in kinds.items() if kind == "none"])
                break
            if kinds[hung.result()] == "cancelled-rollout":
                await self.store.update_rollout(hung.result(), RolloutStatus.CANCELLED, reason="enough of it")
        stop.set()
        await asyncio.wait_for(serving, 300)

    async def calls(self, ids: list[str]) -> int:
        """Calls that the store has of these rollouts, of all their attempts."""
        return sum([len(await self.store.query_calls(i, None)) for i in ids])


def timed(config: RolloutConfig) -> RolloutConfig:
    """The same with a limit on each attempt."""
    return msgspec.structs.replace(config, timeout_seconds=TIMEOUT)


PROMPTS = {"model-4xx": "status 422", "model-5xx": "status 503", "over-length": "long " * WINDOW}
NOBODY = {"kind": "none", "reward": 0.0}
SOMEBODY = {"kind": "none", "reward": 1.0}


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners that are told to stop do so at once, instead of waiting for work a little longer."""
    monkeypatch.setattr("agentlightning.runner.runner.POLL", 0.02)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with opened() as world:
        monkeypatch.setattr(world.loop, "call_later", world.call_later)
        yield world


@asynccontextmanager
async def opened() -> AsyncIterator[World]:
    store = SQLiteStore(":memory:")
    async with ScriptedModelServer(reply, max_model_len=WINDOW) as server:
        gateway = Gateway(store, Keys(b"0" * 32))
        gateway.add_route(Upstream(url=server.url, model=server.model))
        url = await gateway.start()
        try:
            bundle = await store.add_resources({"llm": LLM(endpoint=url, model=server.model)})
            world = World(store, gateway, server, bundle.resources_id)
            async with world.client:
                yield world
        finally:
            await gateway.stop()
            await store.close()


def advantages(batch: Batch) -> dict[str, float]:
    return {row.rollout_id: round(row.segments[0].advantage, 6) for row in batch.rows}


class Cell(NamedTuple):
    """What a kind of failure leaves behind in one attempt."""

    made: int
    """Calls."""
    attempt: AttemptStatus = AttemptStatus.FAILED
    answered: int = 1
    """Of them, those that can be trained."""


CELLS = {
    "agent-raised": Cell(1),
    "no-call": Cell(0, AttemptStatus.SUCCEEDED, answered=0),
    "bad-reward": Cell(1),
    "timeout": Cell(1, AttemptStatus.TIMEOUT),
    "cancelled": Cell(1),
    "model-4xx": Cell(2),
    "model-5xx": Cell(2),
    "over-length": Cell(2),
}
ACTIONS: dict[str, Any] = {
    "retry": "retry",
    "leave out": "leave-out",
    "reward": -1.0,
    "retry, then reward": {"retry": True, "reward": -1.0},
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", CELLS)
async def test_cell(world: World, kind: str, action: str) -> None:
    cell, again, rewarded = CELLS[kind], action.startswith("retry"), action.endswith("reward")
    table = read_failure_table({kind: ACTIONS[action]})
    ids = await world.run([{"kind": kind, "reward": 9.0}, NOBODY, SOMEBODY], {kind: ACTIONS[action]})
    records = await world.store.records(ids)
    failing = records[0]
    # how often it was tried, how it ended, and why
    attempts = await world.store.query_attempts(ids[0])
    assert len(attempts) == failing.rollout.attempts == (ATTEMPTS if again else 1)
    unnamed = kind == "no-call" and not again  # credit names it; else the runner does
    assert {a.status for a in attempts} == {
        AttemptStatus.FAILED if kind == "no-call" and again else cell.attempt
    }
    assert failing.rollout.status == (RolloutStatus.SUCCEEDED if unnamed else RolloutStatus.FAILED)
    assert {failure_kind(a.reason) for a in attempts} == {None if unnamed else kind}
    assert failure_of(failing) == kind and [failure_of(r) for r in records[1:]] == [None, None]
    # who is trained, and against which baseline
    batch = assign(records, RECIPE, failure=table)
    trained = rewarded and cell.answered > 0
    assert advantages(batch) == ({"r0": -1.0, "r1": 0.0, "r2": 1.0} if trained else {"r1": -0.5, "r2": 0.5})
    assert batch.metrics["reward_count"] == 2 + rewarded
    assert batch.metrics["reward_mean"] == pytest.approx(0.0 if rewarded else 0.5)
    assert batch.metrics[f"failed/{kind}"] == 1
    assert batch.metrics.get(f"retried/{kind}", 0) == (1 if again else 0)
    # the ledger accounts for every call that was made
    ledger = batch.ledgers[0]
    out = Counter({"other-attempt": cell.made * (len(attempts) - 1)})
    if trained or kind == "no-call":
        out["over-length" if kind == "over-length" else "error"] = cell.made - cell.answered
    else:
        out["failed-rollout"] = cell.made
    assert (
        ledger.left_out == {k: n for k, n in out.items() if n} and ledger.trained == cell.answered * trained
    )
    await accounted(world, batch, ids)


async def accounted(world: World, batch: Batch, ids: list[str]) -> None:
    """Ledger, store and model server have counted the same calls."""
    made = sum(ledger.made for ledger in batch.ledgers)
    assert made == await world.calls(ids) == len(world.server.log) == batch.metrics["calls"]
    assert all(ledger.sums for ledger in batch.ledgers)
    refused = (await world.store.counts()).get("refused", {})
    assert not [what for what in refused if not what.startswith("update-")], refused


@pytest.mark.parametrize("kind", CELLS)
async def test_tried_again_with_success(world: World, kind: str) -> None:
    """Only the last attempt is trained; the calls of the one before stay on record and in the ledger."""
    table = {kind: "retry"}
    ids = await world.run([{"kind": kind, "reward": 1.0, "fails": 1}, NOBODY], table)
    records = await world.store.records(ids)
    rollout, attempt = records[0].rollout, records[0].attempt
    assert attempt is not None and rollout.status == RolloutStatus.SUCCEEDED and rollout.attempts == 2
    assert failure_of(records[0]) is None and {c.attempt_id for c in records[0].calls} == {attempt.attempt_id}
    [before] = records[0].earlier
    assert failure_kind(before.reason) == kind and before.calls == CELLS[kind].made
    batch = assign(records, RECIPE, failure=read_failure_table(table))
    assert advantages(batch) == {"r0": 0.5, "r1": -0.5}
    trained = {segment.call_id for row in batch.rows for segment in row.segments if segment.trained}
    old = {c.call_id for c in await world.store.query_calls(ids[0], before.attempt_id)}
    assert len(old) == before.calls and not trained & old
    assert batch.ledgers[0].left_out == ({"other-attempt": before.calls} if before.calls else {})
    assert batch.metrics[f"retried/{kind}"] == 1 and f"failed/{kind}" not in batch.metrics
    await accounted(world, batch, ids)


async def test_all_kinds_in_one_step_sum_up(world: World) -> None:
    """But for ``cancelled``, which would stop the others: here somebody cancels one rollout in the store."""
    kinds = [kind for kind in CELLS if kind != "cancelled"]
    tasks = [{"kind": kind, "reward": 9.0} for kind in [*kinds, "cancelled-rollout"]]
    ids = await world.run([*tasks, NOBODY, SOMEBODY], {})
    records = await world.store.records(ids)
    batch = assign(records, RECIPE, failure=read_failure_table({}))
    counts = Counter(failure_of(record) for record in records)
    assert counts == Counter({**dict.fromkeys(CELLS, 1), None: 2})
    assert {row.rollout_id for row in batch.rows} == set(ids[-2:]) and batch.metrics["reward_mean"] == 0.5
    assert {k: n for k, n in batch.metrics.items() if k.startswith("retried/")} == {"retried/model-5xx": 1}
    await accounted(world, batch, ids)


async def test_who_swallows_the_models_error_has_succeeded(world: World) -> None:
    async def patient(task: dict[str, Any], llm: LLM, rollout: Rollout) -> float:
        with pytest.raises(openai.APIStatusError):
            await world_agent(task, llm, rollout)
        return 0.25

    world_agent, world.agent = world.agent, patient  # type: ignore[method-assign]
    ids = await world.run([{"kind": kind, "reward": 9.0} for kind in PROMPTS], {})
    records = await world.store.records(ids)
    assert [failure_of(r) for r in records] == [None] * 3
    batch = assign(records, RECIPE)
    assert (
        batch.metrics["reward_mean"] == 0.25
        and [ledger.left_out for ledger in batch.ledgers][:2] == [{"error": 1}] * 2
    )
    assert all(ledger.trained == 1 for ledger in batch.ledgers)
    await accounted(world, batch, ids)


@pytest.mark.parametrize("failing", ["unreachable", "half-json"])
async def test_an_engine_that_is_gone_or_babbles_is_the_models_fault(failing: str) -> None:
    async with opened() as world:
        if failing == "unreachable":
            await world.server.stop()
        else:
            world.server.reply = lambda body: Reply(message="ok", fault="half-json")
        ids = await world.run([SOMEBODY], {})
        [record] = await world.store.records(ids)
        assert failure_of(record) == "model-5xx" and record.rollout.attempts == ATTEMPTS
        assert [c.status for c in record.calls] == ["error"] and record.earlier[0].calls == 1


async def test_evaluation_lets_agents_do_without_a_model(world: World) -> None:
    """``no-call`` is about training: in evaluation such an agent is what it is, and is not tried again."""
    ids = await world.run([{"kind": "no-call", "reward": 1.0}], {"no-call": "retry"}, mode="val")
    [record] = await world.store.records(ids)
    assert record.rollout.status == RolloutStatus.SUCCEEDED and record.rollout.attempts == 1
    assert [reward.value for reward in record.rewards] == [1.0]
