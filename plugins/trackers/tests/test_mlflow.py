"""MLflow reads what the tracker ``mlflow`` writes, from a SQLite file and from a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from contract.tracker import RUN, RUN_ID, SUMMARY, Kept, TrackerContract, report

pytest.importorskip("mlflow")

from agl_trackers.mlflow import TAG, MLflowTracker
from agl_trackers.options import MLflowOptions

pytestmark = pytest.mark.filterwarnings("ignore")  # mlflow's own, of its dependencies


def client(folder: Path, uri: str | None = None) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(uri or f"sqlite:///{folder.parent / 'mlflow.db'}")


def read(found: Any, experiment: str = "agent-lightning") -> Kept:
    (run,) = found.search_runs(
        [found.get_experiment_by_name(experiment).experiment_id], f"tags.`{TAG}` = '{RUN_ID}'"
    )
    history = {name: found.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    curves = {name: sorted((one.step, one.value) for one in points) for name, points in history.items()}
    return Kept(curves, run.data.params, run.info.status != "FINISHED")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow without a run: making its tables takes seconds."""
    file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    client(file).search_experiments()
    return file


class TestSQLite(TrackerContract):
    @pytest.fixture
    def folder(self, tmp_path: Path, empty_database: Path) -> Path:
        shutil.copy(empty_database, tmp_path)
        return tmp_path / RUN_ID

    def make(self, folder: Path, **options: Any) -> MLflowTracker:
        return MLflowTracker(folder, MLflowOptions(**options))

    def read(self, folder: Path) -> Kept:
        return read(client(folder))


def test_a_run_that_is_taken_back_has_a_new_mlflow_run_at_the_old_times(tmp_path: Path) -> None:
    folder = tmp_path / RUN_ID
    first = MLflowTracker(folder)
    first.start(RUN)
    for step in range(3):
        first.step(report(step))
    first.failed(KeyboardInterrupt())
    found = client(folder)
    old = found.search_runs(["1"])[0]
    assert old.info.status == "KILLED"
    times = {one.step: one.timestamp for one in found.get_metric_history(old.info.run_id, "train/loss")}
    again = MLflowTracker(folder)
    again.resumed(RUN, [report(0)], [])
    again.finish(SUMMARY)
    (new,) = found.search_runs(["1"])
    assert new.info.run_id != old.info.run_id and new.data.tags["agentlightning.replaces"] == old.info.run_id
    assert [(m.step, m.timestamp) for m in found.get_metric_history(new.info.run_id, "train/loss")] == [
        (1, times[1])
    ]
    assert found.get_run(old.info.run_id).info.lifecycle_stage == "deleted"


def test_experiment_and_tags_are_options_and_two_runs_share_an_experiment(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    for name in ("a", "b"):
        tracker = MLflowTracker(
            tmp_path / name, MLflowOptions(tracking_uri=uri, experiment="e", tags={"k": "v"})
        )
        tracker.start({**RUN, "run_id": name})
        tracker.step(report(0))
        tracker.finish(SUMMARY)
    found = client(tmp_path, uri)
    runs = found.search_runs([found.get_experiment_by_name("e").experiment_id])
    assert {run.info.run_name for run in runs} == {"a", "b"} and all(
        run.data.tags["k"] == "v" for run in runs
    )


def test_a_folder_is_a_store_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    tracker = MLflowTracker(tmp_path / RUN_ID, MLflowOptions(tracking_uri=uri))
    tracker.start(RUN)
    tracker.step(report(0))
    tracker.finish(SUMMARY)
    assert read(client(tmp_path, uri)).curves["train/loss"] == [(1, 0.0)]


def test_names_that_mlflow_refuses_are_written_otherwise(tmp_path: Path) -> None:
    tracker = MLflowTracker(tmp_path / RUN_ID)
    tracker.start({**RUN, "odd key (é)": 1, "long": "x" * 10_000})
    odd = report(0)
    odd.metrics["reward_mean/the agent (a+b)"] = 0.5
    tracker.step(odd)
    tracker.finish(SUMMARY)
    kept = read(client(tmp_path / RUN_ID))
    assert kept.curves["reward_mean/the agent _a_b_"] == [(1, 0.5)] and len(kept.settings["long"]) == 6000
