"""The files of a run on S3: a server that answers as S3 does, and a run that goes on on another machine."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto.server")
pytest.importorskip("s3fs")

import boto3
import s3fs
from e2e.test_line import Watch
from e2e.test_resume import Breaks, Crash, life
from moto.server import ThreadedMotoServer

from agl_cluster.storage import keeper as keeping
from agl_cluster.storage.keeper import ArtifactKeeper
from agl_cluster.storage.remote import MANIFEST, RemoteRun, StorageError
from agl_local.policy.checkpoint import latest
from agl_local.policy.folder import fingerprint, load_policy

PLACE = "s3://bucket/runs"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server with an empty bucket, and its address in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST"))
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    yield client
    server.stop()
    s3fs.S3FileSystem.clear_instance_cache()


async def test_a_run_goes_on_on_another_machine(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_STORAGE", PLACE)
    first = Breaks(at=3)
    with pytest.raises(Crash):
        await life(tmp_path / "here", first, save_every=2)
    accounts = json.loads((tmp_path / "here" / "r" / "storage.json").read_text())
    assert accounts["failed"] == 0 and accounts["snapshots"] + accounts["skipped"] >= 2
    second = Watch()
    summary = await life(tmp_path / "there", second, save_every=2, resume=True)  # no file was carried
    assert [one.step for one in second.reports] == [2, 3]
    there = tmp_path / "there" / "r"
    lines = [json.loads(line) for line in (there / "metrics.jsonl").read_text().splitlines()]
    assert [line["params_digest"] for line in lines[:2]] == [one.params_digest for one in first.reports[:2]]
    kept = RemoteRun(PLACE, "r").newest()
    assert kept is not None and kept.step is None and "summary.json" in kept.files
    assert [name for name in kept.files if name.startswith("policy/")]
    checkpoint = latest(there / "checkpoints")
    assert checkpoint is not None and summary["run_id"] == "r"
    assert fingerprint(load_policy(checkpoint.folder / "policy").model) == second.reports[-1].params_digest


def test_an_upload_that_broke_off_is_not_a_snapshot_and_the_next_is(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "FIRST_PAUSE", 0.001)
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("1")
    keeper = ArtifactKeeper(PLACE, folder, lambda line: None)
    keeper._keep(keeping._Wanted(None))
    (folder / "metrics.jsonl").write_text("2")
    s3.put_object(Bucket="bucket", Key="runs/r/000002-end/metrics.jsonl", Body=b"2")  # no manifest follows
    kept = RemoteRun(PLACE, "r").newest()
    assert kept is not None and kept.name == "000001-end"
    keeper.close()
    kept = RemoteRun(PLACE, "r").newest()
    assert kept is not None and kept.name == "000003-end"
    keys = [one["Key"] for one in s3.list_objects_v2(Bucket="bucket")["Contents"]]
    assert "runs/r/000002-end/metrics.jsonl" not in keys  # what broke off is removed in time
    assert f"runs/r/000003-end/{MANIFEST}" in keys


def test_no_bucket_and_no_answer_are_errors_before_a_run_begins(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="there is no bucket nowhere"):
        RemoteRun("s3://nowhere/x", "r").check()
