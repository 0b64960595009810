"""TensorBoard: event files with a run's curves, its settings, and how it ended.

The files are written by TensorBoard's own writer; nothing of TensorFlow or torch is needed. A resumed run's
files are written anew from the run's reports, because what an interrupted process had not flushed is not in
the old ones; points keep the times that the old files give for their steps.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agl_trackers.options import TensorBoardOptions
from agl_trackers.points import Point, flat
from agl_trackers.service import ServiceTracker, library, settings


class TensorBoardTracker(ServiceTracker):
    """Writes ``<run>/tensorboard``, or ``<folder>/<run id>`` with the option ``folder``."""

    def __init__(self, folder: Path, options: TensorBoardOptions = TensorBoardOptions()) -> None:
        super().__init__(folder)
        library("tensorboard", "tensorboard")
        self.options = options
        above = None if options.folder is None else Path(options.folder).expanduser().absolute()
        self.place = folder / "tensorboard" if above is None else above / folder.name
        self._writer: Any = None

    def open(self, run: Mapping[str, Any]) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(self.place), flush_secs=self.options.flush_seconds)
        self._note("run/settings", f"```json\n{json.dumps(settings(run), indent=2, default=str)}\n```")
        self._began(run)

    def reopen(self, run: Mapping[str, Any], points: Sequence[Point]) -> None:
        earlier = sorted(self.place.glob("events.out.tfevents.*"))
        times = _times(earlier)
        self.open(run)
        for point in points:
            self._write(point, times.get(point.step))
        self._writer.flush()
        for file in earlier:  # only now: until then they are all there is
            file.unlink()

    def log(self, point: Point) -> None:
        self._write(point)

    def end(self, error: BaseException | None, values: Mapping[str, float]) -> None:
        self._write(Point(self._finished, {f"summary/{name}": value for name, value in values.items()}))
        self._note("run/end", "finished" if error is None else f"failed: {type(error).__name__}: {error}")
        self._ended(error)
        self._writer.close()

    def _write(self, point: Point, at: float | None = None) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
        self._event(point.step, Summary(value=values), at)

    def _note(self, tag: str, text: str) -> None:
        """Add a text, in Markdown."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.util.tensor_util import make_tensor_proto

        plugin = SummaryMetadata.PluginData(plugin_name="text")
        value = Summary.Value(
            tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=make_tensor_proto([text.encode()])
        )
        self._event(0, Summary(value=[value]))

    def _began(self, run: Mapping[str, Any]) -> None:
        """Give TensorBoard's page of hyperparameters the run's settings."""
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

        start = SessionStartInfo(start_time_secs=time.time())
        for name, value in flat(settings(run)).items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, int | float) and math.isfinite(value):
                start.hparams[name].number_value = value
            elif isinstance(value, str):
                start.hparams[name].string_value = value
        self._session(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start))

    def _ended(self, error: BaseException | None) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        status = api_pb2.STATUS_SUCCESS if error is None else api_pb2.STATUS_FAILURE
        end = SessionEndInfo(status=status, end_time_secs=time.time())
        self._session(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end))

    def _session(self, tag: str, content: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata

        made = metadata.create_summary_metadata(content)
        self._event(0, Summary(value=[Summary.Value(tag=tag, metadata=made, tensor=metadata.NULL_TENSOR)]))

    def _event(self, step: int, summary: Any, at: float | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=at or time.time(), step=step, summary=summary))


def _times(files: Sequence[Path]) -> dict[int, float]:
    """Return step → time of its first point in earlier files. A file that was cut off is read as far as it
    goes.
    """
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[int, float] = {}
    for file in files:
        try:
            for event in EventFileLoader(str(file)).Load():
                if event.HasField("summary"):
                    found.setdefault(event.step, event.wall_time)
        except Exception:  # a damaged file costs the times of its points, never the points
            continue
    return found
