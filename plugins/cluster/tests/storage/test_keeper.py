"""Snapshots of a run's folder elsewhere: whole or not there, tried again, and never the end of a run."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

import agentlightning as agl
from agentlightning.plugins.stores import open_store
from agentlightning.store import SQLiteStore, StoreError
from agentlightning.store.places import artifact_place, store_place
from agl_cluster.storage import keeper as keeping
from agl_cluster.storage.keeper import ArtifactKeeper, fetch_run
from agl_cluster.storage.remote import MANIFEST, RemoteRun, StorageError


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FIRST_PAUSE", 0.001)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with a checkpoint, a log and a store."""
    folder = tmp_path / "runs" / "r"
    checkpoint(folder, 2)
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "run.lock").write_text("4711")
    with sqlite3.connect(folder / "store.sqlite") as store:
        store.execute("CREATE TABLE t (x)")
        store.execute("INSERT INTO t VALUES (42)")
    store.close()
    return folder


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"file://{tmp_path}/kept"


def checkpoint(folder: Path, step: int) -> Path:
    made = folder / "checkpoints" / f"step-{step:06d}"
    made.mkdir(parents=True)
    (made / "weights").write_bytes(bytes([step]) * 1000)
    return made


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def keeper_of(place: str, run: Path, say: Callable[[str], None]) -> ArtifactKeeper:
    """The keeper of a run that has started."""
    made = ArtifactKeeper(place, run.parent, say)
    made.agl_run_started({"run_id": run.name})
    return made


def quiet(line: str) -> None:
    """Say nothing."""


def test_a_run_comes_back_from_its_last_checkpoint(tmp_path: Path, run: Path, place: str) -> None:
    said: list[str] = []
    keeper = keeper_of(place, run, said.append)
    keeper.agl_checkpoint_saved(run / "checkpoints" / "step-000002", 2)
    newer = checkpoint(run, 4)
    keeper.agl_checkpoint_saved(newer, 4)
    shutil.rmtree(newer)  # the driver keeps the last ones only; what was linked is uploaded all the same
    until = time.monotonic() + 60
    while keeper.counts["snapshots"] + keeper.counts["skipped"] < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert fetch_run(place, tmp_path / "elsewhere", "r", said.append)
    kept = RemoteRun(place, "r").newest()
    assert kept is not None and kept.step == 4
    keeper.close()
    found = files(tmp_path / "elsewhere" / "r")
    assert found["checkpoints/step-000004/weights"] == bytes([4]) * 1000
    assert found["metrics.jsonl"] == b"{}\n" and "run.lock" not in found
    assert not [name for name in found if name.startswith(".kept")]
    with sqlite3.connect(tmp_path / "elsewhere" / "r" / "store.sqlite") as store:
        assert store.execute("SELECT x FROM t").fetchone() == (42,)
    store.close()
    assert kept.name in said[0]
    assert not fetch_run(place, tmp_path / "runs", "r", said.append)  # what is here stays


def test_the_end_of_a_run_is_kept_with_all_that_it_left(run: Path, place: str) -> None:
    said: list[str] = []
    keeper = keeper_of(place, run, said.append)
    (run / "summary.json").write_text("{}")
    keeper.close()
    kept = RemoteRun(place, "r").newest()
    assert kept is not None and kept.name.endswith("-end") and kept.step is None
    left = {"summary.json", "metrics.jsonl", "store.sqlite", "checkpoints/step-000002/weights"}
    assert {*kept.files} == left
    accounts = json.loads((run / "storage.json").read_text())
    assert accounts["snapshots"] == 1 and accounts["files"] == 4 and accounts["failed"] == 0
    assert said == [f"Kept at {place}/r"] and not (run / ".kept").exists()


def test_a_file_that_did_not_change_is_uploaded_once(run: Path, place: str) -> None:
    keeper = keeper_of(place, run, quiet)
    keeper._keep(keeping._Wanted(None))
    uploaded = keeper.counts["files"]
    (run / "metrics.jsonl").write_text("{}\n{}\n")
    keeper._keep(keeping._Wanted(None))
    assert keeper.counts["files"] == uploaded + 1
    kept = keeper._remote.newest()
    assert kept is not None and kept.name.startswith("000002")
    assert "/000001-end/" in kept.files["checkpoints/step-000002/weights"].key
    assert "/000002-end/" in kept.files["metrics.jsonl"].key
    keeper.close()


def test_an_upload_that_broke_off_is_never_taken_for_a_whole_one(
    tmp_path: Path, run: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keeper_of(place, run, quiet)
    keeper._keep(keeping._Wanted(None))
    (run / "metrics.jsonl").write_text("newer")
    monkeypatch.setattr(keeper._remote, "commit", lambda snapshot: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        keeper._keep(keeping._Wanted(None))
    assert (tmp_path / "kept" / "r" / "000002-end" / "metrics.jsonl").exists()
    kept = RemoteRun(place, "r").newest()
    assert kept is not None and kept.name == "000001-end"
    assert fetch_run(place, tmp_path / "elsewhere", "r", quiet)
    assert files(tmp_path / "elsewhere" / "r")["metrics.jsonl"] == b"{}\n"
    assert RemoteRun(place, "r").next_name(None) == "000003-end"
    keeper.close()


def test_what_was_changed_there_is_refused_and_leaves_nothing_here(
    tmp_path: Path, run: Path, place: str
) -> None:
    keeper_of(place, run, quiet).close()
    (tmp_path / "kept" / "r" / "000001-end" / "metrics.jsonl").write_text("{ }")
    with pytest.raises(StorageError, match="is not what was kept"):
        fetch_run(place, tmp_path / "elsewhere", "r", quiet)
    assert not [*(tmp_path / "elsewhere").iterdir()]
    (tmp_path / "kept" / "r" / "000001-end" / MANIFEST).write_text("{")
    with pytest.raises(StorageError, match="is damaged"):
        fetch_run(place, tmp_path / "elsewhere", "r", quiet)


def test_a_manifest_that_leads_out_of_the_run_is_refused(tmp_path: Path, run: Path, place: str) -> None:
    keeper_of(place, run, quiet).close()
    file = tmp_path / "kept" / "r" / "000001-end" / MANIFEST
    file.write_text(file.read_text().replace('"metrics.jsonl"', '"../../outside"'))
    with pytest.raises(StorageError, match="outside the run"):
        fetch_run(place, tmp_path / "elsewhere", "r", quiet)
    assert not (tmp_path / "outside").exists()


class Flaky:
    """Fails the first ``times`` calls of a method."""

    def __init__(self, method: Any, times: int) -> None:
        self.method, self.left = method, times

    def __call__(self, *args: Any) -> Any:
        if self.left:
            self.left -= 1
            raise ConnectionError("the network is away")
        return self.method(*args)


def test_failures_are_tried_again_then_counted_and_end_nothing(
    run: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    keeper = keeper_of(place, run, said.append)
    put = keeper._remote.put
    monkeypatch.setattr(keeper._remote, "put", Flaky(put, 3))
    keeper.agl_checkpoint_saved(run / "checkpoints" / "step-000002", 2)
    until = time.monotonic() + 60
    while not (keeper.counts["snapshots"] or keeper.counts["failed"]):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert keeper.counts["retried"] == 3 and keeper.counts["snapshots"] == 1
    monkeypatch.setattr(keeper._remote, "put", Flaky(put, 10**6))
    (run / "metrics.jsonl").write_text("more")
    keeper.close()
    assert keeper.counts["failed"] == 1 and any("1 snapshots were not kept" in line for line in said)
    kept = RemoteRun(place, "r").newest()
    assert kept is not None and kept.step == 2


def test_old_snapshots_go_with_what_only_they_need(tmp_path: Path, run: Path, place: str) -> None:
    keeper = keeper_of(place, run, quiet)
    for step in range(4):
        (run / "metrics.jsonl").write_text(f"{step}")
        keeper._keep(keeping._Wanted(None))
    assert keeper._remote.prune() > 0
    names = sorted(one.name for one in (tmp_path / "kept" / "r").iterdir() if [*one.rglob("*.jsonl")])
    assert names == ["000003-end", "000004-end"]
    assert fetch_run(place, tmp_path / "elsewhere", "r", quiet)
    assert {*files(tmp_path / "elsewhere" / "r")} >= {"store.sqlite", "checkpoints/step-000002/weights"}
    keeper.close()


@pytest.mark.parametrize(
    ("given", "store", "artifacts"),
    [
        ("s3://bucket/x", None, "s3://bucket/x"),
        ("file:///x", None, "file:///x"),
        ("postgresql://x/y", "postgresql://x/y", None),
        ("http://x:1", "http://x:1", None),
        ("/a/folder", "/a/folder", None),
        ("", None, None),
    ],
)
def test_one_variable_names_a_store_or_a_place_for_files(
    monkeypatch: pytest.MonkeyPatch, given: str, store: str | None, artifacts: str | None
) -> None:
    monkeypatch.setenv("AGL_STORAGE", given)
    assert (store_place(), artifact_place()) == (store, artifacts)


async def test_rows_stay_in_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_STORAGE", "s3://bucket/prefix")
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store()
    assert isinstance(store, SQLiteStore) and store.db.path == tmp_path / ".agent-lightning" / "store.sqlite"
    await store.close()
    with pytest.raises(StoreError, match="keeps files and is no store"):
        open_store("s3://bucket/prefix")


@pytest.mark.slow
def test_a_run_is_kept_and_goes_on_where_it_has_no_folder(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGL_STORAGE", place)
    given: dict[str, Any] = {"output": tmp_path / "runs", "run": "r", "trackers": ["files"]}
    agl.Trainer(agl.Baseline(), **given).fit(lambda task: 1.0, [1, 2])
    kept = RemoteRun(place, "r").newest()
    assert (
        kept is not None and kept.name.endswith("-end") and {"store.sqlite", "summary.json"} <= {*kept.files}
    )
    shutil.rmtree(tmp_path / "runs")
    agl.Trainer(agl.Baseline(), resume=True, **given).fit(lambda task: 1.0, [1, 2])
    said = capsys.readouterr().err
    assert f"Fetching r from {place} ({kept.name}" in said and said.count(f"Kept at {place}/r") == 2
    newer = RemoteRun(place, "r").newest()
    assert newer is not None and newer.name == "000002-end"


@pytest.mark.slow
def test_a_place_that_cannot_be_used_ends_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_STORAGE", "az://container/runs")
    with pytest.raises(StorageError, match=r"AGL_STORAGE=az://container/runs: install adlfs"):
        agl.Trainer(agl.Baseline(), output=tmp_path / "runs", trackers=[]).fit(lambda task: 1.0, [1])
    assert not (tmp_path / "runs").exists()
