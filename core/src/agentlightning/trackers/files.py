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
        self._replace("run.json", _document(run))

    def resumed(
        self, run: Mapping[str, Any], reports: Sequence[StepReport], evaluations: Sequence[Evaluation]
    ) -> None:
        """Remove the lines of steps that are trained again, and a line that was cut off."""
        self.start(run)
        self._replace("metrics.jsonl", "".join(map(_line, reports)))
        self._replace("evaluations.jsonl", "".join(map(_line, evaluations)))

    def step(self, report: StepReport) -> None:
        self._append("metrics.jsonl", report)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._append("evaluations.jsonl", evaluation)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._replace("summary.json", _document(summary))

    def _append(self, name: str, record: StepReport | Evaluation) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(_line(record))

    def _replace(self, name: str, text: str) -> None:
        draft = self.folder / (name + ".part")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, self.folder / name)


def _line(record: StepReport | Evaluation) -> str:
    return json.dumps(record.model_dump()) + "\n"


def _document(value: Mapping[str, Any]) -> str:
    return json.dumps(msgspec.to_builtins(dict(value), enc_hook=str), indent=2) + "\n"
