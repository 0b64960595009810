"""Trackio reads what the tracker ``trackio`` writes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from contract.tracker import RUN, RUN_ID, SUMMARY, Kept, TrackerContract, report

os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="agl-trackio-"))  # read when it is imported
trackio = pytest.importorskip("trackio")

from agl_trackers.options import TrackioOptions  # noqa: E402
from agl_trackers.trackio import TrackioTracker  # noqa: E402


def read(project: str) -> Kept:
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = [run for run in trackio.Api().runs(project) if run.name == RUN_ID]
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in SQLiteStorage.get_logs(project, RUN_ID, run_id=run.id):
        for name, value in row.items():
            if name not in ("step", "timestamp"):
                curves.setdefault(name, []).append((row["step"], value))
    settings = run.config or {}
    return Kept(curves, settings, any(alert["level"] == "error" for alert in run.alerts()))


class TestTrackio(TrackerContract):
    def project(self, folder: Path) -> str:
        return f"p-{abs(hash(str(folder)))}"

    def make(self, folder: Path, **options: Any) -> TrackioTracker:
        return TrackioTracker(folder, TrackioOptions(project=self.project(folder), **options))

    def read(self, folder: Path) -> Kept:
        return read(self.project(folder))


def test_nothing_is_printed_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = TrackioTracker(tmp_path / RUN_ID, TrackioOptions(project="quiet"))
    tracker.start(RUN)
    tracker.step(report(0))
    tracker.failed(RuntimeError("x"))
    tracker.resumed(RUN, [report(0)], [])
    tracker.finish(SUMMARY)
    assert capsys.readouterr().out == ""
