"""``events.jsonl`` has a line for each notification except progress, to follow a run or feed another tool.
Off by default.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentlightning.hookspecs import hookimpl
from agentlightning.types import Attempt, Batch, Call, Evaluation, Reward, Rollout, StepReport


class EventsTracker:
    """Writes identifiers and figures; the texts are in the store."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"

    @hookimpl
    def agl_run_started(self, run: Mapping[str, Any]) -> None:
        self._write("run_started", run_id=run["run_id"])

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        self._write("policy_updated", step=report.step, version=report.policy_version)

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        self._write("evaluated", name=evaluation.name, reward=evaluation.reward, n=evaluation.n)

    @hookimpl
    def agl_run_finished(self) -> None:
        self._write("run_finished")

    @hookimpl
    def agl_run_failed(self, run_id: str, error: BaseException) -> None:
        self._write("run_failed", run_id=run_id, error=type(error).__name__)

    @hookimpl
    def agl_run_resumed(
        self, run: Mapping[str, Any], reports: list[StepReport], evaluations: list[Evaluation]
    ) -> None:
        self._write("run_resumed", run_id=run["run_id"], finished_steps=len(reports))

    @hookimpl
    def agl_rollout_started(self, rollout: Rollout, attempt: Attempt) -> None:
        self._write("rollout_started", rollout_id=rollout.rollout_id, attempt_id=attempt.attempt_id)

    @hookimpl
    def agl_call_recorded(self, call: Call) -> None:
        self._write("call_recorded", rollout_id=call.rollout_id, call_id=call.call_id, status=call.status)

    @hookimpl
    def agl_reward_emitted(self, rollout_id: str, reward: Reward) -> None:
        self._write("reward_emitted", rollout_id=rollout_id, name=reward.name, value=reward.value)

    @hookimpl
    def agl_rollout_finished(self, rollout: Rollout, attempt: Attempt) -> None:
        self._write("rollout_finished", rollout_id=rollout.rollout_id, status=attempt.status)

    @hookimpl
    def agl_rows_built(self, step: int, batch: Batch) -> None:
        self._write("rows_built", step=step, rows=len(batch.rows))

    @hookimpl
    def agl_checkpoint_saved(self, folder: Path, step: int) -> None:
        self._write("checkpoint_saved", folder=str(folder), step=step)

    def _write(self, event: str, **fields: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")
