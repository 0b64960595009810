"""A run that an earlier version trained, under former names, is read, explained and verified.

``run_of_0_1.sqlite.gz`` is the store of the run that ``rich.py`` made at commit 952f68a (schema 4, recipe
fields ``staleness`` and ``normalise``, metrics ``groups_zero_spread`` and ``out/…``).
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest
from core.audit.rich import RUN

from agentlightning.audit.run import open_run
from agentlightning.audit.verification.verify import verify
from agentlightning.store.codec import pack, unpack

STORE = Path(__file__).with_name("run_of_0_1.sqlite.gz")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / RUN
    folder.mkdir()
    (folder / "store.sqlite").write_bytes(gzip.decompress(STORE.read_bytes()))
    return folder


async def test_it_verifies(folder: Path) -> None:
    async with open_run(str(folder)) as run:
        assert run.info["recipe"]["staleness"] == 1 == run.recipe.max_staleness
        found = await verify(run)
    assert found.equal and found.links == 4
    assert (found.steps, found.rollouts, found.rows, found.tokens) == (2, 24, 24, 78)


async def test_an_edited_metric_under_its_former_name_is_found(folder: Path) -> None:
    with sqlite3.connect(folder / "store.sqlite") as db:
        db.execute("DELETE FROM links")  # else the link of the step names the edit
        (blob,) = db.execute("SELECT report FROM steps WHERE step = 1").fetchone()
        report = unpack(blob)
        report["metrics"]["groups_zero_spread"] += 1
        db.execute("UPDATE steps SET report = ? WHERE step = 1", (pack(report),))
    async with open_run(str(folder)) as run:
        found = await verify(run, 1)
    assert ["groups_zero_std" in one.text for one in found.differences] == [True]
