"""The store of another process: the same interface over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from agentlightning.store.bounds import check_seconds
from agentlightning.store.http.remote import Remote
from agentlightning.store.http.transport import request_id as new_request_id
from agentlightning.store.pages import SortOrder
from agentlightning.store.routes import LONGEST_WAIT
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Mode,
    Record,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Span,
)


class StoreClient(Remote):
    """All of :class:`~agentlightning.store.base.Store`, served by ``agl store`` at ``url``.

    ``patience``: seconds to keep trying while the server cannot be reached.
    """

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
    ) -> Rollout:
        return cast(
            Rollout,
            await self._call(
                "enqueue_rollout",
                input=input,
                mode=mode,
                resources_id=resources_id,
                config=config,
                metadata=metadata,
                rollout_id=rollout_id,
                run_id=run_id,
                task_id=task_id,
                group_id=group_id,
                sample=sample,
                seed=seed,
                request_id=request_id,
            ),
        )

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[Rollout], *, request_id: str | None = None
    ) -> list[Rollout]:
        return cast(
            "list[Rollout]",
            await self._call("enqueue_many_rollouts", rollouts=rollouts, request_id=request_id),
        )

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
    ) -> AttemptedRollout:
        return cast(
            AttemptedRollout,
            await self._call(
                "start_rollout",
                input=input,
                mode=mode,
                resources_id=resources_id,
                config=config,
                metadata=metadata,
                worker_id=worker_id,
                request_id=request_id,
            ),
        )

    async def dequeue_rollout(
        self,
        worker_id: str | None = None,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> AttemptedRollout | None:
        found = await self.dequeue_many_rollouts(
            worker_id, 1, run_id=run_id, wait=wait, request_id=request_id
        )
        return found[0] if found else None

    async def dequeue_many_rollouts(
        self,
        worker_id: str | None = None,
        limit: int = 1,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        check_seconds("wait", wait)
        clock = asyncio.get_running_loop().time
        request_id = request_id or new_request_id()
        deadline = clock() + wait
        while True:
            part = max(0.0, min(deadline - clock(), LONGEST_WAIT))
            found: list[AttemptedRollout] = await self._call(
                "dequeue_many_rollouts",
                worker_id=worker_id,
                limit=limit,
                run_id=run_id,
                wait=part,
                request_id=request_id,
            )
            if found or clock() >= deadline:
                return found

    async def start_attempt(
        self, rollout_id: str, *, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout:
        return cast(
            AttemptedRollout,
            await self._call(
                "start_attempt", rollout_id=rollout_id, worker_id=worker_id, request_id=request_id
            ),
        )

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
        returned: Sequence[Span] = (),
        request_id: str | None = None,
    ) -> Attempt:
        return cast(
            Attempt,
            await self._call(
                "update_attempt",
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                status=status,
                reason=reason,
                worker_id=worker_id,
                metadata=metadata,
                spans=spans,
                returned=returned,
                request_id=request_id,
            ),
        )

    async def heartbeat(
        self,
        worker_id: str,
        attempt_ids: Sequence[str] = (),
        stats: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> list[str]:
        return cast(
            "list[str]",
            await self._call(
                "heartbeat", worker_id=worker_id, attempt_ids=attempt_ids, stats=stats, request_id=request_id
            ),
        )

    async def update_rollout(
        self,
        rollout_id: str,
        status: RolloutStatus | None = None,
        *,
        reason: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Rollout:
        return cast(
            Rollout,
            await self._call(
                "update_rollout",
                rollout_id=rollout_id,
                status=status,
                reason=reason,
                config=config,
                metadata=metadata,
                request_id=request_id,
            ),
        )

    async def requeue_rollouts(
        self, rollout_ids: Sequence[str], *, reason: str, request_id: str | None = None
    ) -> list[Rollout]:
        return cast(
            "list[Rollout]",
            await self._call(
                "requeue_rollouts", rollout_ids=rollout_ids, reason=reason, request_id=request_id
            ),
        )

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        check_seconds("timeout", timeout)
        clock = asyncio.get_running_loop().time
        ids, wanted = list(rollout_ids), len(set(rollout_ids))
        deadline = None if timeout is None else clock() + timeout
        while True:
            part = LONGEST_WAIT if deadline is None else max(0.0, min(deadline - clock(), LONGEST_WAIT))
            found: list[Rollout] = await self._call("wait_for_rollouts", rollout_ids=ids, timeout=part)
            if len({r.rollout_id for r in found}) == wanted or (deadline is not None and clock() >= deadline):
                return found

    # -- reading work
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout:
        return cast(Rollout, await self._call("get_rollout_by_id", rollout_id=rollout_id))

    async def query_rollouts(
        self,
        *,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        run_id: str | None = None,
        group_id: str | None = None,
        mode: Mode | None = None,
        task_id: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = 1000,
        after: str | None = None,
    ) -> list[Rollout]:
        return cast(
            "list[Rollout]",
            await self._call(
                "query_rollouts",
                status=status,
                rollout_ids=rollout_ids,
                run_id=run_id,
                group_id=group_id,
                mode=mode,
                task_id=task_id,
                sort_order=sort_order,
                limit=limit,
                after=after,
            ),
        )

    async def query_attempts(
        self, rollout_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Attempt]:
        return cast(
            "list[Attempt]",
            await self._call("query_attempts", rollout_id=rollout_id, limit=limit, after=after),
        )

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        return cast("Attempt | None", await self._call("get_latest_attempt", rollout_id=rollout_id))

    async def records(self, rollout_ids: Sequence[str]) -> list[Record]:
        return cast("list[Record]", await self._call("records", rollout_ids=rollout_ids))
