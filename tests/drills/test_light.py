"""The accounts of the drills over all processes: what is lost, doubled, given away, or never tried."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from contract.access import SECRET, TOKEN
from contract.storing import call
from drills.all import ROLES, parts, together
from drills.intruder import Intruder, refused
from drills.light import RUN, Stage, journalled, rollout_is_wrong, schedule

from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus
from agl_cluster.roles import Revoked, RoleTokens, revoked_file
from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start

GOOD = {"exit_status": 0, "part_seconds": 1, "lost": 0, "doubled": 0}


@pytest.fixture
async def store(tmp_path: Path):
    store = SQLiteStore(tmp_path / "store.sqlite")
    yield store
    await store.close()


def test_who_is_killed_when_is_a_function_of_the_seed(tmp_path: Path) -> None:
    roles = Stage(tmp_path, "place", "http://upstream").roles
    assert schedule(40, 1, roles) == schedule(40, 1, roles) != schedule(40, 2, roles)
    assert {role: sum(one.role == role for one in schedule(40, 1, roles)) for role in roles} == dict.fromkeys(
        roles, 8
    )
    assert "postgresql" not in roles and "postgresql" in Stage(tmp_path, "p", "u", postgres=object()).roles


async def test_an_answered_call_is_there_once(store: SQLiteStore, tmp_path: Path) -> None:
    lease = await store.start_rollout({"q": 1}, run_id=RUN, worker_id="w")
    rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
    ids = ["r-0", "r-1", "r-1"]
    await store.add_calls(
        [
            msgspec.structs.replace(call(lease, n), call_id=f"c-{n}", response_id=one)
            for n, one in enumerate(ids)
        ]
    )
    journal = tmp_path / "journal"

    async def account(*named: str | None) -> tuple[int, int, int]:
        lines = [f"call {rollout_id} {attempt_id} {one}" for one in named]
        journal.write_text("\n".join([f"attempt {rollout_id} {attempt_id} 1", *lines]) + "\n")
        found = await journalled(store, journal)
        return found["calls"], found["lost"], found["doubled"]

    assert await account("r-0", "r-1") == (2, 0, 1)
    assert await account("r-0", "never-stored") == (2, 1, 1)


async def test_a_rollout_succeeds_once_with_all_calls(store: SQLiteStore) -> None:
    lease = await store.start_rollout({"q": 1}, run_id=RUN, worker_id="w")
    rollout_id = lease.rollout.rollout_id
    assert "no success of 1 attempts" in await rollout_is_wrong(store, rollout_id)
    await store.update_attempt(rollout_id, lease.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    assert "no success of all calls: 0 of 4" in await rollout_is_wrong(store, rollout_id)


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_the_intruder_gets_nothing_unless_the_door_is_open(
    token: str | None, store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drills.intruder.PAUSE", 0.0)
    if token is not None:
        monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    served = await start(store, port=0, token=token)
    tokens = RoleTokens(SECRET, Revoked(revoked_file(tmp_path / "store.sqlite")))
    client = StoreClient(served.url, token)
    intruder, stop = Intruder(client, served.url, tokens, [], seed=1), asyncio.Event()
    asking = asyncio.create_task(intruder.run(stop))
    try:
        while not asking.done() and intruder.tried < 250:
            await asyncio.sleep(0.05)
        stop.set()
        await asking
    finally:
        await client.close()
        await served.close()
    assert len(refused()) > 500
    if token is None:
        assert intruder.got > 20
    else:
        assert (intruder.got, intruder.lines) == (0, [])


def test_all_drills_make_one_account() -> None:
    by = dict.fromkeys(ROLES, 50)
    core = {**GOOD, "part": "core", "killed": {"trainer": 50}, "hash_mismatches": 0}
    light = {**GOOD, "part": "light", "by": {**by, "trainer": 0}, "foreign_access": 0, "refused": 9}
    postgres = {**GOOD, "part": "postgres", "killed": {"server": 0}, "refused": {"calls-fenced": 2}}
    assert together([core, light, postgres], 200)["refused"] == 11
    found = together([core, light], 200)
    assert (found["kills"], found["by"], found["good"]) == (250, by, True)
    assert not together([core, {**light, "foreign_access": 1}], 200)["good"]
    assert not together([core, {**light, "exit_status": 1}], 200)["good"]
    assert together([core], 20)["never_killed"] == ["store", "gateway", "runner", "postgresql"]
    assert not together([core, light], 251)["good"]


def test_the_kills_are_divided_among_the_parts() -> None:
    made = {part.name: part.command for part in parts(200, 7, "python-with-postgres")}
    assert {"core", "light-sqlite", "light-postgresql"} <= set(made)
    assert sum(int(made[name][made[name].index("--kills") + 1]) for name in list(made)[:3]) >= 200
    assert made["light-postgresql"][0] == "python-with-postgres" and "7" in made["core"]
    assert "light-postgresql" not in {part.name for part in parts(200, 7, None)}
