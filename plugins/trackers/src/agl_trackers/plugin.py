"""Registers the trackers. Their libraries are imported when a run names them."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import TrackerSpec, lazily, lazy_type

_TRACKERS = {
    "tensorboard": ("tensorboard:TensorBoardTracker", "TensorBoardOptions", "event files for TensorBoard"),
    "wandb": ("wandb:WandbTracker", "WandbOptions", "Weights & Biases, offline unless asked"),
    "mlflow": (
        "mlflow:MLflowTracker",
        "MLflowOptions",
        "an MLflow store: a SQLite file, a folder or a server",
    ),
    "trackio": ("trackio:TrackioTracker", "TrackioOptions", "Trackio, on this machine"),
}


@hookimpl
def agl_trackers() -> list[TrackerSpec]:
    return [
        TrackerSpec(
            "console",
            lazily("agl_trackers.console:ConsoleTracker"),
            default=True,
            instead_of="lines",
            about="live progress in a terminal, and the reward's curve",
        ),
        TrackerSpec("events", lazily("agl_trackers.events:EventsTracker"), about="a line for each hook"),
        TrackerSpec("plot", lazily("agl_trackers.plot:PlotTracker"), default=True, about="a picture"),
        *(
            TrackerSpec(
                name,
                lazily(f"agl_trackers.{place}"),
                options=lazy_type(f"agl_trackers.options:{options}"),
                about=about,
            )
            for name, (place, options, about) in _TRACKERS.items()
        ),
    ]
