"""Weights & Biases: offline by default, as files that ``wandb sync`` uploads.

A resumed run's file is written anew from the run's reports, under the same id, and the interrupted one is
removed; if that was uploaded already, it stays and the run goes on under another id, because an upload cannot
take steps back. In mode ``online`` the service itself takes the run back to its checkpoint (``resume_from``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agl_trackers.options import WandbOptions
from agl_trackers.points import Point
from agl_trackers.service import ServiceTracker, library, settings


class WandbTracker(ServiceTracker):
    """Writes ``<run>/wandb``, or ``<folder>/wandb`` with the option ``folder``."""

    def __init__(self, folder: Path, options: WandbOptions = WandbOptions()) -> None:
        super().__init__(folder)
        if options.mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when wandb is imported
        self.wandb = library("wandb", "wandb")
        self.options = options
        self.place = folder if options.folder is None else Path(options.folder).expanduser().absolute()
        self._run: Any = None
        self._last = 0

    def open(self, run: Mapping[str, Any]) -> None:
        self._init(run, id=self.run_id)

    def reopen(self, run: Mapping[str, Any], points: Sequence[Point]) -> None:
        if self.options.mode == "online":
            kept = max((point.step for point in points), default=0)
            self._init(run, resume_from=f"{self.run_id}?_step={kept}")
            return
        earlier = [path for path in (self.place / "wandb").glob("offline-run-*") if self._is_of_run(path)]
        uploaded = [path for path in earlier if any(path.glob("*.synced"))]
        for path in earlier:  # out of the way: the new folder may be made within the same second
            if path not in uploaded:
                path.rename(path.with_name(f"replaced-{path.name}"))
        self._init(run, id=f"{self.run_id}-{len(uploaded) + 1}" if uploaded else self.run_id)
        for point in points:
            self.log(point)
        for path in (self.place / "wandb").glob("replaced-offline-run-*"):
            if self._is_of_run(path):
                shutil.rmtree(path)

    def log(self, point: Point) -> None:
        if point.step < self._last:  # wandb would drop it
            raise ValueError(f"wandb takes no values of step {point.step} after those of step {self._last}")
        self._last = point.step
        self._run.log(point.values, step=point.step)

    def end(self, error: BaseException | None, values: Mapping[str, float]) -> None:
        self._run.summary.update(values)
        if error is not None:
            self._run.summary["error"] = f"{type(error).__name__}: {error}"
        self._run.finish(exit_code=0 if error is None else 1)

    def _init(self, run: Mapping[str, Any], **about: Any) -> None:
        self._last = 0
        self.place.mkdir(parents=True, exist_ok=True)
        self._run = self.wandb.init(
            project=self.options.project,
            entity=self.options.entity,
            name=self.run_id,
            group=self.options.group,
            tags=self.options.tags or None,
            config=settings(run),
            mode=self.options.mode,
            dir=str(self.place),
            # It neither takes over the terminal nor looks at the repository: agents' output may hold secrets.
            settings=self.wandb.Settings(
                console="off", disable_git=True, save_code=False, silent=True, x_disable_stats=True
            ),
            **about,
        )

    def _is_of_run(self, path: Path) -> bool:
        """Whether an offline folder belongs to this run: it is called ``offline-run-<time>-<id>``."""
        identity = path.name.partition("offline-run-")[2].partition("-")[2]
        return identity == self.run_id or identity.startswith(f"{self.run_id}-")
