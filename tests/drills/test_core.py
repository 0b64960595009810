"""The drill's own accounts: they see what is lost, doubled or different."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from drills.core import RUN, Scene, Witness, ahead, hashes, idle, strike, untested

from agentlightning.store import Conflict, SQLiteStore
from agentlightning.types import StepReport


@pytest.fixture
async def store(tmp_path: Path):
    store = SQLiteStore(tmp_path / "store.sqlite")
    yield store
    await store.close()


async def written(store: SQLiteStore, rollouts: int = 3) -> Witness:
    witness = Witness("http://127.0.0.1:1")
    witness.store = store  # type: ignore[assignment]
    for _ in range(rollouts):
        await witness.write()
    return witness


async def test_nothing_is_missing_and_nothing_is_there_twice(store: SQLiteStore):
    witness = await written(store)
    assert len(witness.acknowledged) == len(witness.ended) == 3
    assert await witness.audit(store) == (0, 0)


async def test_a_write_that_is_gone_is_lost(store: SQLiteStore):
    witness = await written(store)
    await store.writer.write(lambda: store.db.connection.execute("DELETE FROM spans WHERE name = 's1'"))
    assert await witness.audit(store) == (3, 0)
    await store.writer.write(lambda: store.db.connection.execute("UPDATE rollouts SET status = 'running'"))
    assert await witness.audit(store) == (6, 0)


async def test_what_is_there_twice_is_seen(store: SQLiteStore):
    witness = await written(store)
    columns = [row[1] for row in store.db.connection.execute("PRAGMA table_info(spans)") if row[1] != "seq"]
    names = ", ".join(columns)
    again = f"INSERT INTO spans ({names}) SELECT {names} FROM spans WHERE name = 's0'"
    await store.writer.write(lambda: store.db.connection.execute(again))
    assert await witness.audit(store) == (0, 3)


async def test_hashes_are_those_of_rows_and_parameters(store: SQLiteStore):
    def report(step: int, rows: str, params: str) -> StepReport:
        return StepReport(
            run_id=RUN, step=step, policy="policy", policy_version=1, rows_digest=rows, params_digest=params
        )

    for step, (rows, params) in enumerate([("a", "b"), ("a", "c"), ("d", "b"), ("a", "b")]):
        await store.add_step(report(step, rows, params))
    found = await hashes(store)
    assert found[0] == found[3] and len({found[0], found[1], found[2]}) == 3


async def test_the_witness_does_not_hide_a_refusal(store: SQLiteStore):
    witness = await written(store, 1)
    witness.number = 0
    with pytest.raises(Conflict):
        await witness.write()


def test_every_process_is_started_as_a_person_would(tmp_path: Path):
    scene = Scene("s", tmp_path, concurrency=16, steps=3, port=4747)
    assert scene.command("store")[1:3] == ["store", str(tmp_path / "store.sqlite")]
    assert "--resume" not in scene.command("trainer") and "agent.concurrency=0" in scene.command("trainer")
    (tmp_path / RUN).mkdir()
    assert "--resume" in scene.command("trainer")
    assert scene.command("runner")[-2:] == ["--concurrency", "16"]


def test_equal_hashes_of_nothing_are_worth_nothing(tmp_path: Path):
    def report(step: int, params: str, tokens: float = 3.0) -> StepReport:
        return StepReport(
            run_id=RUN, step=step, policy="p", policy_version=1, params_digest=params,
            metrics={"tokens_trained": tokens},
        )  # fmt: skip

    scene = Scene("s", tmp_path, concurrency=1, steps=2, port=1)
    assert idle(scene, [report(0, "a"), report(1, "b")], 8, 8) == []
    assert idle(scene, [report(0, "a"), report(1, "b", 0.0)], 8, 8) == ["s: steps [1] had no row to train"]
    long = Scene("s", tmp_path, concurrency=1, steps=4, port=1)
    one_still = [report(0, "a"), report(1, "b", 0.0), report(2, "c"), report(3, "d")]
    assert idle(long, one_still, 8, 8) == []
    assert idle(scene, [report(0, "a"), report(1, "a")], 8, 8) == ["s: the parameters never changed"]
    assert idle(scene, [report(0, "a"), report(1, "b")], 7, 8) == [
        "s: 7 of 8 fingerprinted rollouts were verified"
    ]
    assert "s: 0 of 2 steps are on record" in idle(scene, [], 0, 0)


def test_what_was_never_killed_was_not_tried():
    good = {"hit": ["runner", "store", "trainer"], "midway": 1}
    assert untested([good, good], 3) == []
    assert untested([good, {**good, "hit": ["store", "trainer"]}], 3) == ["never killed: runner"]
    assert untested([good, {**good, "midway": 0}], 3) == ["no trainer went on from a checkpoint"]
    assert untested([good], 0) == ["the witness wrote nothing"]


def test_what_ended_by_itself_is_not_started_again(tmp_path: Path):
    scene = Scene("s", tmp_path, concurrency=1, steps=1, port=1)
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    assert ended.wait() == 3
    scene.processes["trainer"] = ended
    scene.kill("trainer")
    assert scene.processes["trainer"] is ended and not scene.kills


@pytest.mark.parametrize("seed", range(20))
def test_kills_are_spread_over_the_steps_and_reach_everybody(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Killed(Scene):
        def start(self, role: str) -> None:
            self.processes[role] = subprocess.Popen(["sleep", "60"])
            self.started[role] = 0.0

    scene, choose = Killed("s", tmp_path, 1, 5, 1), random.Random(seed)
    for role in ("store", "runner", "trainer"):
        scene.start(role)
    for reported in range(5):
        monkeypatch.setattr("drills.core.last_step", lambda _, n=reported: n)
        for _ in range(10):
            if not ahead(scene, 4):
                strike(scene, 4, choose)
    scene.close()
    assert scene.kills.total() == 4 and len(scene.kills) == 3 and scene.midway
