"""TensorBoard reads what the tracker ``tensorboard`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract.tracker import RUN, RUN_ID, Kept, TrackerContract, report

pytest.importorskip("tensorboard")

from agl_trackers.options import TensorBoardOptions
from agl_trackers.tensorboard import TensorBoardTracker


def read(place: Path) -> Kept:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import api_pb2, metadata

    found = EventAccumulator(str(place), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    curves = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    plugin = found.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(plugin[metadata.SESSION_START_INFO_TAG])
    settings: dict[str, Any] = {
        name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()
    }
    end = plugin.get(metadata.SESSION_END_INFO_TAG)
    ended = end and metadata.parse_session_end_info_plugin_data(end).status
    return Kept(curves, settings, ended != api_pb2.STATUS_SUCCESS)


class TestTensorBoard(TrackerContract):
    def make(self, folder: Path, **options: Any) -> TensorBoardTracker:
        return TensorBoardTracker(folder, TensorBoardOptions(**options))

    def read(self, folder: Path) -> Kept:
        return read(folder / "tensorboard")


def test_the_folder_of_all_runs_is_an_option(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path / RUN_ID, TensorBoardOptions(folder=str(tmp_path / "logs")))
    tracker.start(RUN)
    tracker.step(report(0))
    tracker.finish({})
    assert read(tmp_path / "logs" / RUN_ID).curves["train/loss"] == [(1, 0.0)]


def test_points_keep_their_times_and_a_file_that_was_cut_off_is_read_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def times() -> dict[int, float]:
        found = EventAccumulator(str(tmp_path / RUN_ID / "tensorboard"))
        found.Reload()
        return {event.step: event.wall_time for event in found.Scalars("train/loss")}

    first = TensorBoardTracker(tmp_path / RUN_ID)
    first.start(RUN)
    for step in range(2):
        first.step(report(step))
    first.close()
    before = times()
    (file,) = (tmp_path / RUN_ID / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    again = TensorBoardTracker(tmp_path / RUN_ID)
    again.resumed(RUN, [report(0), report(1)], [])
    again.close()
    assert times() == before
