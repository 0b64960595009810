"""What attempts did, resources, runs, accounts and workers, asked of the store of another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from agentlightning.store.base import Capabilities
from agentlightning.store.call_spans import as_call_span
from agentlightning.store.http.transport import Transport
from agentlightning.store.otel_spans import span_from_otel
from agentlightning.store.pages import SortBy, SortOrder
from agentlightning.types import (
    AuditLink,
    Call,
    Resource,
    Resources,
    RolloutConfig,
    RolloutFingerprint,
    Span,
    StepReport,
    Worker,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class Remote(Transport):
    """The part of :class:`~agentlightning.store.http.client.StoreClient` that never waits."""

    @property
    def capabilities(self) -> Capabilities:
        """What a served store can do; it is as durable as the server's is."""
        return Capabilities(
            durable=True, async_safe=True, thread_safe=False, zero_copy=True, otlp_traces=True
        )

    # -- what attempts did
    async def add_span(self, span: Span, *, request_id: str | None = None) -> Span:
        return cast(Span, await self._call("add_span", span=span, request_id=request_id))

    async def add_many_spans(
        self, spans: Sequence[Span], *, numbered: bool = False, request_id: str | None = None
    ) -> list[Span]:
        return cast(
            "list[Span]",
            await self._call("add_many_spans", spans=spans, numbered=numbered, request_id=request_id),
        )

    async def add_otel_span(
        self,
        rollout_id: str,
        attempt_id: str,
        readable_span: ReadableSpan,
        sequence_id: int | None = None,
        *,
        request_id: str | None = None,
    ) -> Span:
        span = span_from_otel(rollout_id, attempt_id, readable_span, sequence_id)
        numbered = sequence_id is not None
        return (await self.add_many_spans([span], numbered=numbered, request_id=request_id))[0]

    async def get_next_span_sequence_id(
        self, rollout_id: str, attempt_id: str, *, request_id: str | None = None
    ) -> int:
        return cast(
            int,
            await self._call(
                "get_next_span_sequence_id",
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                request_id=request_id,
            ),
        )

    async def get_many_span_sequence_ids(
        self, attempts: Sequence[tuple[str, str]], *, request_id: str | None = None
    ) -> list[int]:
        return cast(
            "list[int]",
            await self._call("get_many_span_sequence_ids", attempts=attempts, request_id=request_id),
        )

    async def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = "latest",
        *,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        sort_by: SortBy = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = 10_000,
        after: str | None = None,
    ) -> list[Span]:
        found: list[Span] = await self._call(
            "query_spans",
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name,
            name_contains=name_contains,
            sort_by=sort_by,
            sort_order=sort_order,
            limit=limit,
            after=after,
        )
        return [as_call_span(s) for s in found]

    async def add_calls(
        self, calls: Sequence[Call], *, fence: int | None = None, request_id: str | None = None
    ) -> None:
        await self._call("add_calls", calls=calls, fence=fence, request_id=request_id)

    async def query_calls(
        self,
        rollout_id: str,
        attempt_id: str | None = "latest",
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[Call]:
        return cast(
            "list[Call]",
            await self._call(
                "query_calls", rollout_id=rollout_id, attempt_id=attempt_id, limit=limit, after=after
            ),
        )

    # -- resources
    async def add_resources(
        self, resources: dict[str, Resource | str | dict[str, Any]], *, request_id: str | None = None
    ) -> Resources:
        return cast(Resources, await self._call("add_resources", resources=resources, request_id=request_id))

    async def update_resources(
        self,
        resources_id: str,
        resources: dict[str, Resource | str | dict[str, Any]],
        *,
        request_id: str | None = None,
    ) -> Resources:
        return cast(
            Resources,
            await self._call(
                "update_resources", resources_id=resources_id, resources=resources, request_id=request_id
            ),
        )

    async def get_latest_resources(self) -> Resources | None:
        return cast("Resources | None", await self._call("get_latest_resources"))

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> Resources:
        found = await self._call("get_resources_by_id", resources_id=resources_id, version=version)
        return cast(Resources, found)

    async def query_resources(self, limit: int = 100, *, after: str | None = None) -> list[Resources]:
        return cast("list[Resources]", await self._call("query_resources", limit=limit, after=after))

    # -- runs and accounts
    async def add_run(
        self,
        run_id: str,
        info: dict[str, Any],
        config: RolloutConfig | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        await self._call("add_run", run_id=run_id, info=info, config=config, request_id=request_id)

    async def update_run(
        self,
        run_id: str,
        info: dict[str, Any],
        config: RolloutConfig | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        await self._call("update_run", run_id=run_id, info=info, config=config, request_id=request_id)

    async def query_runs(self, limit: int = 100, *, after: str | None = None) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", await self._call("query_runs", limit=limit, after=after))

    async def delete_run(self, run_id: str, *, request_id: str | None = None) -> dict[str, int]:
        return cast("dict[str, int]", await self._call("delete_run", run_id=run_id, request_id=request_id))

    async def prune(
        self,
        *,
        older_than: float | None = None,
        keep_runs: int | None = None,
        run_id: str | None = None,
        request_id: str | None = None,
    ) -> dict[str, int]:
        return cast(
            "dict[str, int]",
            await self._call(
                "prune", older_than=older_than, keep_runs=keep_runs, run_id=run_id, request_id=request_id
            ),
        )

    async def add_step(
        self,
        report: StepReport,
        seals: Sequence[RolloutFingerprint] = (),
        *,
        link: AuditLink | None = None,
        request_id: str | None = None,
    ) -> None:
        await self._call("add_step", report=report, seals=seals, link=link, request_id=request_id)

    async def add_link(self, link: AuditLink, *, request_id: str | None = None) -> None:
        await self._call("add_link", link=link, request_id=request_id)

    async def query_links(
        self, run_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[AuditLink]:
        return cast(
            "list[AuditLink]", await self._call("query_links", run_id=run_id, limit=limit, after=after)
        )

    async def query_steps(
        self, run_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[StepReport]:
        return cast(
            "list[StepReport]", await self._call("query_steps", run_id=run_id, limit=limit, after=after)
        )

    async def query_seals(
        self,
        run_id: str,
        step: int | None = None,
        rollout_id: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[RolloutFingerprint]:
        return cast(
            "list[RolloutFingerprint]",
            await self._call(
                "query_seals", run_id=run_id, step=step, rollout_id=rollout_id, limit=limit, after=after
            ),
        )

    async def count(
        self,
        kind: str,
        reason: str,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        n: int = 1,
        request_id: str | None = None,
    ) -> None:
        await self._call(
            "count",
            kind=kind,
            reason=reason,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            n=n,
            request_id=request_id,
        )

    async def counts(self, rollout_id: str | None = None) -> dict[str, dict[str, int]]:
        return cast("dict[str, dict[str, int]]", await self._call("counts", rollout_id=rollout_id))

    # -- workers
    async def update_worker(
        self,
        worker_id: str,
        status: str | None = None,
        stats: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> Worker:
        return cast(
            Worker,
            await self._call(
                "update_worker", worker_id=worker_id, status=status, stats=stats, request_id=request_id
            ),
        )

    async def get_worker_by_id(self, worker_id: str) -> Worker:
        return cast(Worker, await self._call("get_worker_by_id", worker_id=worker_id))

    async def query_workers(
        self, *, status: str | None = None, limit: int | None = None, after: str | None = None
    ) -> list[Worker]:
        return cast(
            "list[Worker]", await self._call("query_workers", status=status, limit=limit, after=after)
        )

    async def statistics(self, run_id: str | None = None) -> dict[str, Any]:
        return cast("dict[str, Any]", await self._call("statistics", run_id=run_id))
