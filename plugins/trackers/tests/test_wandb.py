"""wandb reads what the tracker ``wandb`` writes offline, and nothing asks for the network."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from contract.tracker import RUN, RUN_ID, SUMMARY, Kept, TrackerContract, report

pytest.importorskip("wandb")

from agl_trackers.options import WandbOptions
from agl_trackers.wandb import WandbTracker


def flat(key: list[str], value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: found for k, inner in value.items() for name, found in flat([*key, k], inner).items()}
    return {".".join(key): value}


HEADER = 7
"""Bytes of a file's own header, and of the header of each of its chunks."""
BLOCK = 32 * 1024


def records(file: Path) -> list[Any]:
    """The records of an offline file, when its last one is there: it comes after ``finish`` has returned."""
    while not (found := chunks(file.read_bytes())) or found[-1].WhichOneof("record_type") != "exit":
        time.sleep(0.01)  # a test that waits for ever is ended by its runner
    return found


def chunks(data: bytes) -> list[Any]:
    """The records of an offline file so far, as wandb's own messages.

    wandb's reader is a part of its service and cannot be called from Python. The file is a log in LevelDB's
    format: blocks of 32 KiB, in them chunks with checksum, length and type (1: whole, 2: first, 3: middle,
    4: last).
    """
    from wandb.proto import wandb_internal_pb2

    found, whole, at = [], b"", HEADER
    assert data.startswith(b":W&B")
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if at + HEADER + length > len(data):
            break
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return found


def read(place: Path) -> Kept:
    (file,) = place.glob(f"wandb/offline-run-*-{RUN_ID}*/*.wandb")
    curves: dict[str, list[tuple[int, float]]] = {}
    settings: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    code = None
    for record in records(file):
        if (kind := record.WhichOneof("record_type")) == "run":
            for item in record.run.config.update:
                settings |= flat([item.key], json.loads(item.value_json))
        elif kind == "history":
            row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            step = record.history.step.num if record.history.HasField("step") else row["_step"]
            for name, value in row.items():
                if not name.startswith("_"):
                    curves.setdefault(name, []).append((step, value))
        elif kind == "summary":
            for item in record.summary.update:
                summary |= flat([*(item.nested_key or [item.key])], json.loads(item.value_json))
        elif kind == "exit":
            code = record.exit.exit_code
    for name, value in summary.items():
        if name not in curves and isinstance(value, int | float):
            curves[f"summary/{name}"] = [(0, value)]
    return Kept(curves, settings, code != 0)


class TestWandb(TrackerContract):
    def make(self, folder: Path, **options: Any) -> WandbTracker:
        return WandbTracker(folder, WandbOptions(**options))

    def read(self, folder: Path) -> Kept:
        return read(folder)


def test_offline_nothing_asks_for_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                asked.append(connection.recv(1000))
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "WANDB_BASE_URL"):
            monkeypatch.setenv(name, address)
        monkeypatch.setenv("NO_PROXY", "")
        tracker = WandbTracker(tmp_path / RUN_ID, WandbOptions(project="p", group="g", tags=["t"]))
        tracker.start(RUN)
        tracker.step(report(0))
        tracker.finish(SUMMARY)
        assert os.environ["WANDB_ERROR_REPORTING"] == "false"
        server.shutdown(socket.SHUT_RDWR)
    assert asked == []
    assert read(tmp_path / RUN_ID).curves["train/loss"] == [(1, 0.0)]


def test_an_uploaded_life_stays_and_the_run_goes_on_under_another_id(tmp_path: Path) -> None:
    folder = tmp_path / RUN_ID
    first = WandbTracker(folder)
    first.start(RUN)
    first.step(report(0))
    first.close()
    (life,) = (folder / "wandb").glob("offline-run-*")
    (life / f"run-{RUN_ID}.wandb.synced").touch()
    again = WandbTracker(folder)
    again.resumed(RUN, [report(0)], [])
    again.finish(SUMMARY)
    assert life.is_dir()
    (other,) = (folder / "wandb").glob(f"offline-run-*-{RUN_ID}-2")
    assert any(
        record.WhichOneof("record_type") == "history" for record in records(next(other.glob("*.wandb")))
    )


def test_a_point_that_wandb_would_drop_is_an_error(tmp_path: Path) -> None:
    tracker = WandbTracker(tmp_path / RUN_ID)
    tracker.start(RUN)
    tracker.step(report(3))
    with pytest.raises(ValueError, match="no values of step 2 after those of step 4"):
        tracker.step(report(1))
    tracker.finish(SUMMARY)


def test_online_the_service_takes_the_run_back_to_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, asked = WandbTracker(tmp_path / RUN_ID, WandbOptions(mode="online")), []
    monkeypatch.setattr(tracker.wandb, "init", lambda **given: asked.append(given))
    tracker.resumed(RUN, [report(0), report(1)], [])
    assert asked[0]["resume_from"] == f"{RUN_ID}?_step=2" and asked[0]["mode"] == "online"
