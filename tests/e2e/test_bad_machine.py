"""Endpoints that are down, disks that are full, clocks that jump, ids that come twice, in a real run: it goes
on, or ends with a clear error and goes on afterwards; what was acknowledged is there.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agl_testing import Reply, ScriptedModelServer
from e2e.bad import Line, ask, soon
from e2e.test_line import THREAD, Watch, trainer

import agl_local.policy.files
from agentlightning import LLM
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.store import Conflict, SQLiteStore, StoreError
from agentlightning.types import RolloutStatus, UsageError
from agentlightning.types.work import MAX_ATTEMPTS
from agl_cluster.store.client import StoreClient

At = Callable[[int], Any]


def asks(at: At = lambda n: None) -> Any:
    """An agent that makes two calls; between them ``at`` is told the number of its run, from 0."""
    runs = iter(range(10_000))

    async def agent(task: Any, llm: LLM) -> float:
        await ask(llm, "first")
        if asyncio.iscoroutine(done := at(next(runs))):
            await done
        await ask(llm, "second")
        return 1.0

    return agent


def statuses(line: Line) -> list[RolloutStatus]:
    return [record.rollout.status for record in sorted(line.records, key=lambda r: r.rollout.start_time)]


# ------------------------------------------------------------------------------------------- the engine


@pytest.mark.slow
async def test_an_engine_that_was_never_there_ends_the_run(tmp_path: Path) -> None:
    with socket.socket() as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        line = Line(f"http://127.0.0.1:{nobody.getsockname()[1]}/v1", tmp_path, steps=50, no_signal_steps=1)
        with pytest.raises(
            NothingRewarded, match=r"10 steps were outages, .*1 × model-5xx: .*(502|connect|reach)"
        ):
            await soon(line.fit(asks(), [1]))
    assert line.failures() == {"model-5xx": 10}
    assert [len(record.calls) + sum(a.calls for a in record.earlier) for record in line.records] == [
        MAX_ATTEMPTS
    ] * 10


@pytest.mark.slow
async def test_an_engine_that_dies_and_comes_back(tmp_path: Path) -> None:
    """Away for a step it goes on; away for ten times `no_signal_steps` it ends, and goes on if told so."""
    down = False

    def reply(body: dict[str, Any]) -> Any:
        return Reply(fault="disconnect") if down else "ok"

    async with ScriptedModelServer(reply) as server:
        options: dict[str, Any] = {"steps": 15, "max_attempts": 1, "no_signal_steps": 1}
        line = Line(server, tmp_path, **options)

        async def agent(task: Any, llm: LLM) -> float:
            nonlocal down
            down = next(steps) in (1, *range(3, 13))
            await ask(llm)
            return 1.0

        steps = iter(range(100))
        with pytest.raises(NothingRewarded, match=r"10 steps were outages, .*1 × model-5xx"):
            await soon(line.fit(agent, [1]))
        ok, bad = RolloutStatus.SUCCEEDED, RolloutStatus.FAILED
        assert statuses(line) == [ok, bad, ok, *[bad] * 10]
        line = Line(server, tmp_path, resume=True, **options)
        result = await soon(line.fit(agent, [1]))
    assert len(line.driver.batches) == 3  # the step that it ended in, anew, and two more
    assert sorted(map(str, statuses(line))) == sorted([str(ok)] * 5 + [str(bad)] * 10)
    assert result["totals"]["rollouts"] == 15 and result["totals"]["rollouts_failed"] == 10


# ----------------------------------------------------------------------------------------- the store server

SERVE = """
import asyncio, sys
from agl_cluster.store.server import serve
asyncio.run(serve(sys.argv[1], port=int(sys.argv[2]), ready=lambda url: print(url, flush=True)))
"""


async def serve(path: Path, port: int) -> subprocess.Popen[bytes]:
    """A store server; of no event loop, for agents on a loop of their own kill it."""
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(path), str(port)], stdout=subprocess.PIPE)
    assert process.stdout is not None and await asyncio.to_thread(process.stdout.readline)
    process.stdout.close()
    return process


@pytest.mark.slow
async def test_a_store_server_that_dies_and_comes_back(tmp_path: Path) -> None:
    """It may be killed in the middle of a run; one that stays away ends the run, which goes on afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, path = f"http://127.0.0.1:{port}", tmp_path / "s.sqlite"

    async def life(server: ScriptedModelServer, agent: Any, patience: float, **options: Any) -> Line:
        try:
            store.patience = patience
            line = Line(
                server,
                tmp_path,
                store=store,
                steps=4,
                timeout_seconds=60.0,
                unresponsive_seconds=60.0,
                **options,
            )
            lives.append(line)
            await soon(line.fit(agent, [1]))
            return line
        finally:
            await store.close()

    async def at(n: int) -> None:
        nonlocal process
        if n == 3:
            store.patience = 0.3
        if n in (1, 3):
            process.kill()
            await asyncio.to_thread(process.wait)
        if n == 1:
            process = await serve(path, port)

    lives: list[Line] = []
    gone = rf"no store answers at {url}.*Start one with `agl store`"
    async with ScriptedModelServer() as server:
        store = StoreClient(url)
        with pytest.raises(StoreError, match=gone):
            await life(server, asks(), 0.3)
        process = await serve(path, port)
        store = StoreClient(url)
        with pytest.raises(StoreError, match=gone):
            await life(server, asks(at), 20.0, run="s")
        process = await serve(path, port)
        store = StoreClient(url)
        again = await life(server, asks(), 20.0, run="s", resume=True)
        process.terminate()
        assert await asyncio.to_thread(process.wait) == 0
    assert [len(line.driver.batches) for line in lives] == [0, 3, 1]
    assert {record.rollout.status for record in again.records} == {RolloutStatus.SUCCEEDED}
    assert len(again.records) == 4
    assert all(len(record.calls) == 2 and len(record.rewards) == 1 for record in again.records)


# ------------------------------------------------------------------------------------------------ the disk


@pytest.mark.slow
async def test_a_full_disk_under_the_store_ends_the_run_which_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.sqlite"
    store = SQLiteStore(path)

    def at(n: int) -> None:
        if n == 5:
            (pages,) = store.db.connection.execute("PRAGMA page_count").fetchone()
            store.db.connection.execute(f"PRAGMA max_page_count = {pages}")

    def reply(body: dict[str, Any]) -> str:
        return "x" * 20_000 if body["messages"][-1]["content"] == "second" else "ok"

    answered = 0

    async def agent(task: Any, llm: LLM) -> float:
        nonlocal answered
        await ask(llm, "first")
        answered += 1
        at(answered)
        await ask(llm, "second")
        answered += 1
        return 1.0

    async with ScriptedModelServer(reply) as server:
        line = Line(server, tmp_path, store=store, steps=8, batch_size=2, max_attempts=1)
        with pytest.raises(
            UsageError, match=r"database or disk is full|could not be stored, so its answer is"
        ):
            await soon(line.fit(agent, [1, 2]))
        await store.close()
        store = SQLiteStore(path)  # a connection of its own: there is room again
        records = await store.records([r.rollout_id for r in await store.query_rollouts(run_id="r")])
        assert sum(call.status == "ok" for record in records for call in record.calls) == answered
        again = Line(server, tmp_path, store=store, steps=8, batch_size=2, max_attempts=1, resume=True)
        result = await soon(again.fit(agent, [1, 2]))
        await store.close()
    assert 1 <= len(line.driver.batches) == 8 - len(again.driver.batches)
    assert result["totals"]["rollouts"] == len(again.records) == 16
    good = [record for record in again.records if record.rollout.status is RolloutStatus.SUCCEEDED]
    assert len(good) >= 2 * len(again.driver.batches)
    assert all(len(record.calls) == 2 and len(record.rewards) == 1 for record in good)


@pytest.mark.slow
async def test_a_full_disk_under_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a place where no checkpoint can be made: the error names it, and the last checkpoint is whole."""
    full = False

    def sync(path: Path) -> None:
        if full and "step-000002" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(agl_local.policy.files, "sync", sync)

    async def agent(task: Any, llm: LLM) -> float:
        return float(len((await ask(llm, str(task), max_tokens=2)).choices[0].message.content or "") % 2)

    async def life(steps: int, **options: Any) -> Watch:
        watch = Watch()
        given = {**THREAD, "max_len": 128, "save_every": 1}
        made = trainer(
            tmp_path, watch, run="r", steps=steps, batch_size=1, options=given, adapters=[], **options
        )
        await soon(made.afit(agent, [1, 2]), 60)
        return watch

    await life(1)
    full = True
    with pytest.raises(UsageError, match=r"checkpoint of step 2.*No space left on device"):
        await life(3, resume=True)
    assert [p.name for p in sorted((tmp_path / "r" / "checkpoints").iterdir())] == ["step-000001"]
    full = False
    watch = await life(3, resume=True)
    assert [report.step for report in watch.reports] == [1, 2]
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]


@pytest.mark.slow
async def test_a_place_where_no_checkpoint_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    watch = Watch()
    given = {**THREAD, "max_len": 128, "save_every": 1}
    made = trainer(tmp_path, watch, run="r", steps=1, batch_size=1, options=given, adapters=[])

    async def agent(task: Any, llm: LLM) -> float:
        (tmp_path / "r" / "checkpoints").write_text("in the way")
        await ask(llm, max_tokens=2)
        return 1.0

    with pytest.raises(UsageError, match=r"checkpoint of step 1 .*checkpoints"):
        await soon(made.afit(agent, [1]), 60)


# --------------------------------------------------------------------------------------- clocks and ids


@pytest.mark.slow
@pytest.mark.parametrize("hours", [2, 48, -48])
async def test_a_wall_clock_that_is_set_takes_no_key_and_ends_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real, offset = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset)

    def at(n: int) -> None:
        nonlocal offset
        offset = hours * 3600.0 if n == 0 else 0.0 if n == 2 else offset

    async with ScriptedModelServer() as server:
        line = Line(server, tmp_path, steps=4)
        result = await soon(line.fit(asks(at), [1]))
    assert result["accounts"] == {} and line.out() == {} and result["totals"]["calls_trained"] == 8
    assert all(record.rollout.attempts == 1 for record in line.records)
    assert all(record.rollout.status is RolloutStatus.SUCCEEDED for record in line.records)
    # the order of calls does not hang on the clock
    said = [[call.request["messages"][0]["content"] for call in record.calls] for record in line.records]
    assert said == [["first", "second"]] * 4


@pytest.mark.slow
async def test_rollout_ids_that_come_twice(tmp_path: Path) -> None:
    """The same content is done once, other content is refused, whoever asks."""
    async with ScriptedModelServer() as server:
        line = Line(server, tmp_path)
        async with line.trainer.session(asks(), [1]) as context:
            store, ids = context.store, context.resources.ids
            fields = {"rollout_id": "one", "run_id": context.run_id}
            first = await store.enqueue_rollout({"q": 1}, resources_id=ids["policy"], **fields)
            await soon(store.wait_for_rollouts([first.rollout_id]))
            again = await store.enqueue_rollout({"q": 1}, resources_id=ids["policy"], **fields)
            assert again.rollout_id == "one" and again.status is RolloutStatus.SUCCEEDED
            with pytest.raises(Conflict, match="one"):
                await store.enqueue_rollout({"q": 2}, resources_id=ids["policy"], **fields)
            [record] = await store.records(["one"])
            assert len(record.calls) == 2 and record.rollout.attempts == 1 and len(server.log) == 2
