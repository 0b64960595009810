"""The store of another process: the same interface over HTTP."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

from agentlightning.store.render import shorten
from agentlightning.store.routes import LONGEST_WAIT
from agentlightning.store.transport import Transport
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Call,
    Mode,
    Record,
    Resource,
    Resources,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Span,
    StepReport,
    Worker,
)


class StoreClient(Transport):
    """All of :class:`~agentlightning.store.base.Store`, served by ``agl store`` at ``url``.

    ``patience``: seconds to keep trying while the server cannot be reached.
    """

    # -- work
    # -- work
    async def enqueue_rollout(
        self,
        input: Any,
        mode: Mode = "train",
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        rollout_id: str | None = None,
        run_id: str | None = None,
        task_id: str | None = None,
        group_id: str | None = None,
        sample: int = 0,
        seed: int | None = None,
        request_id: str | None = None,
    ) -> Rollout: ...
    async def enqueue_many_rollouts(
        self, rollouts: Sequence[Rollout], *, request_id: str | None = None
    ) -> list[Rollout]: ...
    async def start_rollout(
        self,
        input: Any,
        mode: Mode = "train",
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        worker_id: str | None = None,
        request_id: str | None = None,
    ) -> AttemptedRollout: ...
    async def dequeue_rollout(
        self,
        worker_id: str | None = None,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> AttemptedRollout | None: ...
    async def dequeue_many_rollouts(
        self,
        worker_id: str | None = None,
        limit: int = 1,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]: ...
    async def start_attempt(
        self, rollout_id: str, *, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout: ...
    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | None = None,
        *,
        reason: str | None = None,
        worker_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        spans: Sequence[Span] = (),
        request_id: str | None = None,
    ) -> Attempt: ...
    async def heartbeat(
        self, worker_id: str, attempt_ids: Sequence[str] = (), stats: dict[str, Any] | None = None
    ) -> list[str]: ...
    async def update_rollout(
        self,
        rollout_id: str,
        status: RolloutStatus | None = None,
        *,
        reason: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Rollout: ...
    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]: ...

    # -- reading work
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout: ...
    async def query_rollouts(
        self,
        *,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        run_id: str | None = None,
        group_id: str | None = None,
        mode: Mode | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> list[Rollout]: ...
    async def query_attempts(self, rollout_id: str) -> list[Attempt]: ...
    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None: ...
    async def records(self, rollout_ids: Sequence[str]) -> list[Record]: ...

    # -- what attempts did
    async def add_span(self, span: Span, *, request_id: str | None = None) -> Span: ...
    async def add_many_spans(self, spans: Sequence[Span], *, request_id: str | None = None) -> list[Span]: ...
    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = "latest",
        *,
        name: str | None = None,
        limit: int = 10_000,
    ) -> list[Span]: ...
    async def add_calls(self, calls: Sequence[Call], *, fence: int | None = None) -> None: ...
    async def query_calls(self, rollout_id: str, attempt_id: str | None = "latest") -> list[Call]: ...

    # -- resources
    async def add_resources(
        self, resources: dict[str, Resource | str | dict[str, Any]], *, request_id: str | None = None
    ) -> Resources: ...
    async def update_resources(
        self,
        resources_id: str,
        resources: dict[str, Resource | str | dict[str, Any]],
        *,
        request_id: str | None = None,
    ) -> Resources: ...
    async def get_latest_resources(self) -> Resources | None: ...
    async def get_resources_by_id(self, resources_id: str) -> Resources: ...
    async def query_resources(self, limit: int = 100) -> list[Resources]: ...

    # -- runs and accounts
    async def add_run(self, run_id: str, info: dict[str, Any]) -> None: ...
    async def update_run(self, run_id: str, info: dict[str, Any]) -> None: ...
    async def query_runs(self, limit: int = 100) -> list[dict[str, Any]]: ...
    async def add_step(self, report: StepReport) -> None: ...
    async def query_steps(self, run_id: str) -> list[StepReport]: ...
    async def count(
        self,
        kind: str,
        reason: str,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        n: int = 1,
    ) -> None: ...
    async def counts(self, rollout_id: str | None = None) -> dict[str, dict[str, int]]: ...

    # -- workers
    async def update_worker(
        self, worker_id: str, status: str | None = None, stats: dict[str, Any] | None = None
    ) -> Worker: ...
    async def get_worker_by_id(self, worker_id: str) -> Worker: ...
    async def query_workers(self) -> list[Worker]: ...
    async def statistics(self) -> dict[str, Any]: ...
    async def close(self) -> None: ...
