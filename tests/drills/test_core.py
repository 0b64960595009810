"""The drill's own accounts: they see what is lost, doubled or different."""

from __future__ import annotations

from pathlib import Path

import pytest
from drills.core import RUN, Scene, Witness, hashes

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
    assert "--resume" in scene.command("trainer") and "agent.concurrency=0" in scene.command("trainer")
    assert scene.command("runner")[-2:] == ["--concurrency", "16"]
