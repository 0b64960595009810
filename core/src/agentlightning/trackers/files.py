"""``metrics.jsonl`` (one line a step), ``evaluations.jsonl`` and ``summary.json`` in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.types import Evaluation, StepReport


class FilesTracker:
    """Appends as the run goes; the summary replaces its file in one step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, run: Mapping[str, Any]) -> None:
        self._replace("run.json", run)

    def resumed(
        self, run: Mapping[str, Any], reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
    ) -> None:
        """Remove the lines of steps that are trained again, and a line that was cut off."""
        self.start(run)
        self._rewrite("metrics.jsonl", reports)
        self._rewrite("evaluations.jsonl", evaluations)

    def step(self, report: StepReport) -> None:
        self._append("metrics.jsonl", report.model_dump())

    def evaluated(self, evaluation: Evaluation) -> None:
        self._append("evaluations.jsonl", evaluation.model_dump())

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._replace("summary.json", summary)

    def _append(self, name: str, value: Mapping[str, Any]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")

    def _rewrite(self, name: str, values: Sequence[StepReport | Evaluation]) -> None:
        draft = self.folder / (name + ".part")
        draft.write_text("".join(json.dumps(v.model_dump()) + "\n" for v in values), encoding="utf-8")
        os.replace(draft, self.folder / name)

    def _replace(self, name: str, value: Mapping[str, Any]) -> None:
        draft = self.folder / (name + ".part")
        plain = msgspec.to_builtins(dict(value), enc_hook=str)
        draft.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
        os.replace(draft, self.folder / name)
