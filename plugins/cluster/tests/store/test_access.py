"""Who may do what at the store's server: the matrix of roles, tokens of roles, keys from the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from contract.access import BEARERS, SECRET, TOKEN, Matrix, matrix
from contract.running import serving

from agentlightning.gateway import AttemptInfo
from agentlightning.keys import Keys
from agentlightning.plugins.stores import open_store
from agentlightning.runner.outcome import CannotRun
from agentlightning.store import AttemptEnded, SQLiteStore
from agentlightning.types import AttemptStatus, RolloutStatus
from agl_cluster.roles import Revoked, Role, RoleTokens, revoked_file
from agl_cluster.runners.attempt_keys import IssuedAttemptKeys, attempt_keys_for
from agl_cluster.store import app, load
from agl_cluster.store.client import StoreClient
from agl_cluster.store.outcomes import Busy, Forbidden, Unauthorized
from agl_cluster.store.routes import all_routes
from agl_cluster.store.server import start


async def ask(sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch, names: list[str]) -> Matrix:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    served = await start(sqlite, port=0, token=TOKEN)
    path = sqlite.db.path
    assert path is not None
    tokens = RoleTokens(SECRET, Revoked(revoked_file(Path(path))))
    chosen = [bearer for bearer in BEARERS if bearer.name in names]
    found = await matrix(sqlite, served.url, tokens, chosen)
    await served.close()
    return found


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["attempt", "runner of one rollout"], marks=pytest.mark.slow),
        pytest.param([b.name for b in BEARERS], marks=pytest.mark.nightly),
    ],
    ids=["attempts", "all"],
)
async def test_every_route_admits_who_its_row_names(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    found = await ask(sqlite, monkeypatch, names)
    assert found.wrong == [] and found.foreign_access == 0
    assert found.cells == found.as_declared == (2 * len(all_routes()) + 4) * (len(names) + 1) * 2


def test_every_route_names_its_least_role() -> None:
    assert {route.least for route in all_routes().values()} == set(Role)


async def test_an_end_that_is_refused_ends_no_runner(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    served = await start(sqlite, port=0)
    monkeypatch.setenv("AGL_TOKEN", RoleTokens(SECRET).issue(Role.RUNNER)[0])
    client = open_store(served.url)

    async def agent(task: str) -> float:
        if task == "lost":
            [mine] = await sqlite.query_attempts(lost.rollout_id)
            await sqlite.update_attempt(lost.rollout_id, mine.attempt_id, AttemptStatus.TIMEOUT)
        return 1.0

    lost = await sqlite.enqueue_rollout("lost")
    async with serving(agent, client, concurrency=1) as runner:
        while not runner.counts["fenced"]:
            await asyncio.sleep(0.01)
        after = await sqlite.enqueue_rollout("after")
        [done] = await sqlite.wait_for_rollouts([after.rollout_id], timeout=300)
    assert done.status == RolloutStatus.SUCCEEDED
    await client.close()
    await served.close()


async def test_a_runner_without_the_secret_gets_keys_of_attempts_that_run(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    served = await start(sqlite, port=0)
    token, _ = RoleTokens(SECRET).issue(Role.RUNNER)
    monkeypatch.delenv("AGL_SECRET")
    monkeypatch.setenv("AGL_TOKEN", token)
    client = open_store(served.url)
    keys = attempt_keys_for(client)
    assert isinstance(keys, IssuedAttemptKeys)
    lease = await client.start_rollout(1, run_id="run", worker_id="w")
    info = AttemptInfo.of(lease.rollout, lease.attempt, {})
    await keys.fetch(info)
    claims = Keys(SECRET).check(keys.open_attempt(info))
    assert (claims.run_id, claims.rollout_id) == ("run", lease.rollout.rollout_id)
    assert (claims.attempt_id, claims.fence) == (lease.attempt.attempt_id, lease.attempt.fence)
    with pytest.raises(Forbidden, match="delete_run needs the role admin; this is a token of role runner"):
        await client.delete_run("run")
    [refused, done] = await client.batch([("prune", {}), ("heartbeat", {"worker_id": "w"})])
    assert isinstance(refused, Forbidden) and done == []
    await client.update_attempt(lease.rollout.rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    with pytest.raises(AttemptEnded):
        await keys.fetch(info)
    await client.close()
    await served.close()


async def test_a_store_without_the_secret_gives_no_keys(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGL_SECRET", raising=False)
    served = await start(sqlite, port=0)
    client = StoreClient(served.url, RoleTokens(SECRET).issue(Role.RUNNER)[0])
    lease = await client.start_rollout(1, worker_id="w")
    with pytest.raises(CannotRun, match="start it with the run's AGL_SECRET"):
        await IssuedAttemptKeys(client).fetch(AttemptInfo.of(lease.rollout, lease.attempt, {}))
    await client.close()
    await served.close()


async def test_processes_with_the_secret_need_nothing_else(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    served = await start(sqlite, port=0)
    runner = StoreClient(served.url)
    runner.act_as(Role.RUNNER)
    assert await runner.dequeue_rollout("w") is None
    with pytest.raises(Forbidden):
        await runner.query_runs()
    admin = StoreClient(served.url)
    assert await admin.query_runs() == []
    given = StoreClient(served.url, RoleTokens(SECRET).issue(Role.TRAINER)[0])
    given.act_as(Role.RUNNER)  # a token that was given stays
    assert await given.query_runs() == []
    monkeypatch.delenv("AGL_SECRET")
    stranger = StoreClient(served.url)
    with pytest.raises(Unauthorized, match="the bearer token is missing: set AGL_SECRET to the store's"):
        await stranger.query_runs()
    for client in (runner, admin, given, stranger):
        await client.close()
    await served.close()


async def test_writes_beyond_the_bound_are_refused_and_sent_again(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "RETRY_AFTER", "0")
    monkeypatch.setattr(app, "RETRY_AFTER", "0")
    bound = load.Load(max_writes=1)
    monkeypatch.setattr(app, "Load", lambda: bound)
    served = await start(sqlite, port=0)
    client = StoreClient(served.url)
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(client.enqueue_rollout(number, rollout_id=f"ro-{number}"))
    assert len(await sqlite.query_rollouts()) == 20 and bound.refused > 0 and bound.writes == bound.bytes == 0
    with bound.writing(10):
        async with aiohttp.ClientSession(served.url) as http, http.get("/readyz") as ready:
            assert ready.status == 503 and "busy" in (await ready.json())["problems"][0]
        impatient = StoreClient(served.url, patience=0.0)
        impatient_calls = [impatient.enqueue_rollout(1), impatient.batch([("count", {})])]
        for call in impatient_calls:
            with pytest.raises(Busy, match="1 writes with 0 MiB are under way"):
                await call
        assert await impatient.query_rollouts(limit=1)  # who reads is not refused
    await impatient.close()
    await client.close()
    await served.close()


def test_a_body_alone_may_be_larger_than_the_bound() -> None:
    bound = load.Load(max_writes=3, max_bytes=10)
    with bound.writing(100), pytest.raises(Busy), bound.writing(1):
        pass
    with bound.writing(6), bound.writing(4):
        assert bound.bytes == 10 and not bound.full
