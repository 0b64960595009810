"""MLflow: a SQLite file, a folder, or a server, through MLflow's client.

MLflow keeps every value that was logged. So a resumed run goes on in its MLflow run if nothing in it has to
be taken back; else it gets a new one with the steps that stand, at their old times, and the old one is
deleted (``mlflow gc`` removes it for good; until then it can be restored).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agl_trackers.options import MLflowOptions
from agl_trackers.points import Point, flat
from agl_trackers.service import ServiceTracker, library, settings

TAG = "agentlightning.run_id"
_PARAMS = 100
"""Parameters that MLflow takes in one request."""
_METRICS = 1000
"""Metrics that it takes in one request."""
_VALUE = 6000
"""Characters of a parameter's value."""


class MLflowTracker(ServiceTracker):
    """Writes to ``tracking_uri``; without one, to ``mlflow.db`` in the folder of all runs."""

    def __init__(self, folder: Path, options: MLflowOptions = MLflowOptions()) -> None:
        super().__init__(folder)
        library("mlflow", "mlflow")
        self.options = options
        self._client: Any = None
        self._mlflow_run = ""

    def open(self, run: Mapping[str, Any]) -> None:
        self._connect()
        self._create(run)

    def reopen(self, run: Mapping[str, Any], points: Sequence[Point]) -> None:
        self._connect()
        earlier = self._client.search_runs([self._experiment()], f"tags.`{TAG}` = '{self.run_id}'")
        if not earlier:
            self._create(run)
            self._log(points, {})
            return
        self._mlflow_run = earlier[0].info.run_id
        logged = self._logged(points)
        last = max((point.step for point in points), default=0)
        if all(step <= last for steps in logged.values() for step in steps):
            self._client.update_run(self._mlflow_run, status="RUNNING")
            self._log(points, logged)
            return
        replaced, times = (
            self._mlflow_run,
            {step: at for steps in logged.values() for step, at in steps.items()},
        )
        self._create(run, {"agentlightning.replaces": replaced})
        self._log(points, {}, times)
        for old in earlier:  # only now: until then they are all there is
            self._client.delete_run(old.info.run_id)

    def log(self, point: Point) -> None:
        self._log([point], {})

    def end(self, error: BaseException | None, values: Mapping[str, float]) -> None:
        self._log([Point(self._finished, {f"summary/{name}": value for name, value in values.items()})], {})
        if error is not None:
            self._client.set_tag(self._mlflow_run, "error", f"{type(error).__name__}: {error}"[:_VALUE])
        interrupted = error is not None and not isinstance(error, Exception)
        status = "FINISHED" if error is None else "KILLED" if interrupted else "FAILED"
        self._client.set_terminated(self._mlflow_run, status)

    def _connect(self) -> None:
        from mlflow import MlflowClient

        if self._client is None:
            self._client = MlflowClient(
                self.options.tracking_uri or f"sqlite:///{self.folder.parent / 'mlflow.db'}"
            )

    def _experiment(self) -> str:
        """Return the id of the experiment, which is made if there is none."""
        from mlflow.exceptions import MlflowException

        name = self.options.experiment
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name, (self.folder.parent / "mlflow").as_uri()))
            except MlflowException:  # another run has made it meanwhile
                found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id)

    def _create(self, run: Mapping[str, Any], tags: Mapping[str, str] = {}) -> None:
        from mlflow.entities import Param

        about = {**self.options.tags, TAG: self.run_id, **tags}
        made = self._client.create_run(self._experiment(), tags=about, run_name=self.run_id)
        self._mlflow_run = made.info.run_id
        values = {_name(name): str(value)[:_VALUE] for name, value in flat(settings(run)).items()}
        params = [Param(name, value) for name, value in values.items()]
        for at in range(0, len(params), _PARAMS):
            self._client.log_batch(self._mlflow_run, params=params[at : at + _PARAMS])

    def _logged(self, points: Sequence[Point]) -> dict[str, dict[int, float]]:
        """Return metric → step → time in milliseconds of what the MLflow run holds."""
        names = set(self._client.get_run(self._mlflow_run).data.metrics)
        names -= {name for name in names if name.startswith("summary/")}
        return {
            name: {one.step: one.timestamp for one in self._client.get_metric_history(self._mlflow_run, name)}
            for name in sorted(names)
        }

    def _log(
        self,
        points: Sequence[Point],
        logged: Mapping[str, Mapping[int, float]],
        times: Mapping[int, float] = {},
    ) -> None:
        """Log the points but those that are ``logged``. ``times``: step → milliseconds."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_name(name), value, int(times.get(point.step, now)), point.step)
            for point in points
            for name, value in point.values.items()
            if point.step not in logged.get(_name(name), {})
        ]
        for at in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._mlflow_run, metrics=metrics[at : at + _METRICS])


def _name(name: str) -> str:
    """Return ``name`` with "_" for signs that MLflow does not take."""
    return re.sub(r"[^\w\-. /]", "_", name)
