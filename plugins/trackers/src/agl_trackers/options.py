"""The options of each tracker: ``trackers: [{mlflow: {experiment: calc}}]`` in a run's file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentlightning.types.sections import Section


class TensorBoardOptions(Section):
    """Options of ``tensorboard``."""

    folder: str | None = None
    """Folder that gets a folder for each run; none: ``tensorboard`` in the run's own folder. A relative path
    begins where the command was started."""
    flush_seconds: float = Field(default=10.0, gt=0)
    """Seconds after which what was logged is on disk at the latest."""


class WandbOptions(Section):
    """Options of ``wandb``."""

    project: str = "agent-lightning"
    """Name of the project."""
    entity: str | None = None
    """User or team; none: the default of the account."""
    mode: Literal["offline", "online"] = "offline"
    """``offline``: files only, which ``wandb sync`` uploads. ``online``: sent as the run goes."""
    folder: str | None = None
    """Folder that gets ``wandb/offline-run-…``; none: the run's own folder."""
    group: str | None = None
    """Group of runs that belong together, e.g. the seeds of one experiment."""
    tags: list[str] = []
    """Tags of the run."""


class MLflowOptions(Section):
    """Options of ``mlflow``."""

    tracking_uri: str | None = None
    """``sqlite:///file``, a folder, or a server's URL; none: ``mlflow.db`` beside the run's folder, where all
    runs of an ``output`` are together."""
    experiment: str = "agent-lightning"
    """Name of the experiment, which is made if there is none."""
    tags: dict[str, str] = {}
    """Tags of the run."""


class TrackioOptions(Section):
    """Options of ``trackio``. Where its database lies, Trackio's own variable ``TRACKIO_DIR`` says."""

    project: str = "agent-lightning"
    """Name of the project."""
    group: str | None = None
    """Group of runs that belong together."""
