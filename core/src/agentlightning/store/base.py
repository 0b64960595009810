# mypy: disable-error-code="empty-body"
"""The store's interface: work, spans, calls, rewards and resources, durable before they are acknowledged.

Method names are those of Agent Lightning 0.3, with calls, records and steps added. The SQLite store, its HTTP
client and every plugin's store pass one contract suite.

Invariants: *acknowledged ⇒ survives kill -9*; a write that is sent twice under one ``request_id`` is done
once and answered the same; a write for an attempt that has ended or was fenced raises :class:`AttemptEnded`
and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, TypeVar

from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    AuditLink,
    Call,
    Mode,
    Record,
    Resource,
    Resources,
    Rollout,
    RolloutConfig,
    RolloutFingerprint,
    RolloutStatus,
    Span,
    StepReport,
    UsageError,
)

T = TypeVar("T")
REMEMBERED: Final = 900.0
"""Seconds for which a store remembers a request id, at least."""
GivenResource = Resource | str | dict[str, Any]
"""A resource, the text of a prompt template, or a dict that describes a resource."""


class StoreError(UsageError):
    """A store operation failed; the message names the problem and a way out."""


class NotFound(StoreError):
    """The rollout, attempt, run, resources or worker does not exist."""


class Conflict(StoreError):
    """The id exists with other content, or the change of status is not allowed."""


class AttemptEnded(Conflict):
    """A late write, refused and counted: the attempt has ended, or a later attempt has its lease."""


class Store:
    """The methods of a store. A store inherits this class and defines every method that has no body here.

    All methods are coroutines, and safe for concurrent tasks of one event loop.
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
        """Put one task into the queue. The same ``rollout_id`` with the same content is queued once.

        Default of ``resources_id``: the latest resources. Default of ``config``: that of its run
        (:meth:`add_run`), else ``RolloutConfig()``.
        """
        rollout = Rollout(
            rollout_id=rollout_id or "",
            input=input,
            mode=mode,
            run_id=run_id,
            task_id=task_id,
            group_id=group_id,
            sample=sample,
            seed=seed,
            resources_id=resources_id,
            config=config or RolloutConfig(),
            metadata=metadata or {},
        )
        return _only(await self.enqueue_many_rollouts([rollout], request_id=request_id), request_id)

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[Rollout], *, request_id: str | None = None
    ) -> list[Rollout]:
        """Put rollouts into the queue in one transaction. An empty ``rollout_id`` becomes a fresh one.

        A ``config`` equal to ``RolloutConfig()`` means that of the run.
        """

    async def start_rollout(
        self,
        input: Any,
        mode: Mode = "train",
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        *,
        worker_id: str | None = None,
        rollout_id: str | None = None,
        run_id: str | None = None,
        group_id: str | None = None,
        attempt_id: str | None = None,
        request_id: str | None = None,
    ) -> AttemptedRollout:
        """Make a rollout and lease it at once, past the queue. A ``rollout_id`` that exists: Conflict.
        ``attempt_id``: a fresh id, so that one batch can write what the attempt did.
        """

    async def dequeue_rollout(
        self,
        worker_id: str | None = None,
        *,
        run_id: str | None = None,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> AttemptedRollout | None:
        """Lease the oldest queued rollout; wait up to ``wait`` seconds for one."""
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
        """Lease up to ``limit`` queued rollouts; wait up to ``wait`` seconds for the first."""

    async def start_attempt(
        self,
        rollout_id: str,
        *,
        worker_id: str | None = None,
        queued: bool = False,
        request_id: str | None = None,
    ) -> AttemptedRollout:
        """Lease this rollout, past the queue. An attempt that still runs is fenced; with ``queued``, a
        rollout that is not in the queue is a :class:`Conflict` instead.
        """

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
        """Store the attempt's spans and its new status in one transaction. Metadata is merged.

        ``returned``: rewards that the agent or a judge returned, as the runner reports them. They count
        before emitted ones, which do not count beside them at all where the agent is not trusted.
        """

    async def heartbeat(
        self,
        worker_id: str,
        attempt_ids: Sequence[str] = (),
        stats: dict[str, Any] | None = None,
        *,
        request_id: str | None = None,
    ) -> list[str]:
        """Note a sign of life of a worker and of the attempts it runs.

        Return the attempts it has lost (ended, fenced, unknown). It should stop them: their writes are
        refused.
        """

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
        """Set status or configuration, merge metadata. To end or requeue a rollout ends its attempt too."""

    async def requeue_rollouts(
        self, rollout_ids: Sequence[str], *, reason: str, request_id: str | None = None
    ) -> list[Rollout]:
        """Put rollouts back into the queue, also those that have ended. Return them in the order asked for.

        A live attempt is fenced and ended as unresponsive with the reason; an ended one stays as it is.
        Neither counts against ``max_attempts`` any more. A queued rollout that has had no attempt stays as it
        is.
        """

    async def wait_for_rollouts(
        self, rollout_ids: Sequence[str], timeout: float | None = None
    ) -> list[Rollout]:
        """Wait until all have ended, or ``timeout`` seconds. Return the ended ones in the order asked for."""

    # -- reading work
    async def get_rollout_by_id(self, rollout_id: str) -> Rollout:
        """Return the rollout, or raise :class:`NotFound`."""

    async def query_rollouts(
        self,
        *,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
        run_id: str | None = None,
        group_id: str | None = None,
        mode: Mode | None = None,
        task_id: str | None = None,
        sort_order: Literal["asc", "desc"] = "asc",
        limit: int = 1000,
        after: str | None = None,
    ) -> list[Rollout]:
        """Return rollouts in order of arrival (``desc``: latest first), filtered. ``after`` is the last id of
        the page before.
        """

    async def query_attempts(
        self, rollout_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Attempt]:
        """Return the attempts of a rollout, first to last. ``after``: the last id of the page before."""

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the attempt that counts; ``None`` before the first lease."""

    async def records(self, rollout_ids: Sequence[str]) -> list[Record]:
        """Return calls, rewards and wire spans of each rollout's latest attempt, and a summary of each
        earlier attempt, in the order asked for. Other requests go on between two pages of records, unless
        this is a call of a batch.
        """

    # -- what attempts did
    async def add_span(self, span: Span, *, request_id: str | None = None) -> Span:
        """Store one span; return it with its ``sequence_id``."""
        return _only(await self.add_many_spans([span], request_id=request_id), request_id)

    async def add_many_spans(self, spans: Sequence[Span], *, request_id: str | None = None) -> list[Span]:
        """Store spans of one or several attempts, all or none. Return them with their ``sequence_id``.

        Rewards among them are *emitted* ones: they are refused once returned rewards are on record. A span
        that is no valid record is kept as ``agentlightning.bad_record``, with the reason, and counted.
        """

    async def spans(
        self,
        rollout_id: str,
        attempt_id: str | None = "latest",
        *,
        name: str | None = None,
        limit: int = 10_000,
        after: str | None = None,
    ) -> list[Span]:
        """Return the spans of an attempt (``latest``, an id; ``None``: of all, attempt by attempt) in order
        of arrival, as they are stored. ``after``: ``<attempt_id>/<sequence_id>`` of the page before.
        """

    async def add_calls(
        self, calls: Sequence[Call], *, fence: int | None = None, request_id: str | None = None
    ) -> None:
        """Store model calls, all or none. A call id that is known with the same content is stored already."""

    async def query_calls(
        self,
        rollout_id: str,
        attempt_id: str | None = "latest",
        *,
        limit: int | None = None,
        after: str | None = None,
    ) -> list[Call]:
        """Return the calls of an attempt (``latest``, an id) by request and choice, or of all attempts
        (``None``) in order of arrival. ``after``: the last call id of the page before.
        """

    # -- resources
    async def add_resources(
        self,
        resources: dict[str, GivenResource],
        *,
        resources_id: str | None = None,
        request_id: str | None = None,
    ) -> Resources:
        """Add a bundle, version 1. It becomes the latest. ``resources_id``: its id, if it is chosen; raise
        :class:`Conflict` for one that exists.
        """

    async def update_resources(
        self, resources_id: str, resources: dict[str, GivenResource], *, request_id: str | None = None
    ) -> Resources:
        """Add the next version of a bundle. It replaces all of the content and becomes the latest."""

    async def get_latest_resources(self) -> Resources | None:
        """Return the bundle that was added or updated last."""

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> Resources:
        """Return a bundle in this version, or the newest."""

    async def query_resources(self, limit: int = 100, *, after: str | None = None) -> list[Resources]:
        """Return the newest version of each bundle; the bundle that was added last comes first. ``after``:
        the last id of the page before.
        """

    # -- runs and accounts
    async def add_run(
        self,
        run_id: str,
        info: dict[str, Any],
        config: RolloutConfig | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        """Register a run. The same id with the same info is registered once. ``config``: for rollouts of the
        run that have no configuration of their own.
        """

    async def update_run(
        self,
        run_id: str,
        info: dict[str, Any],
        config: RolloutConfig | None = None,
        *,
        request_id: str | None = None,
    ) -> None:
        """Merge ``info`` into the info of a run. ``config`` replaces its configuration, unless ``None``."""

    async def query_runs(self, limit: int = 100, *, after: str | None = None) -> list[dict[str, Any]]:
        """Return runs, newest first: their info with ``run_id``, ``create_time`` and ``update_time``.
        ``after``: the last id of the page before.
        """

    async def add_step(
        self,
        report: StepReport,
        fingerprints: Sequence[RolloutFingerprint] = (),
        *,
        link: AuditLink | None = None,
        request_id: str | None = None,
    ) -> None:
        """Store a step's report, the fingerprints of its rollouts, and its link in the run's chain."""

    async def add_link(self, link: AuditLink, *, request_id: str | None = None) -> None:
        """Add a link to the end of a run's chain. Raise ``Conflict`` if its number is not the next."""

    async def query_links(
        self, run_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[AuditLink]:
        """Return the chain of a run, oldest first. ``after``: the last number of the page before."""

    async def query_steps(
        self, run_id: str, *, limit: int | None = None, after: str | None = None
    ) -> list[StepReport]:
        """Return the reports of a run by step and policy. ``after``: ``<step>/<policy>``."""

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
        """Add ``n`` to the count of ``kind`` for ``reason``."""

    async def counts(self, rollout_id: str | None = None) -> dict[str, dict[str, int]]:
        """Return kind → reason → n, of one rollout or (``None``) of everything."""

    async def close(self) -> None:
        """Close the store. A second call does nothing."""

    def act_as(self, role: str) -> None:
        """Use no more rights than ``role`` needs (``runner``, ``trainer``, …) from now on. Call it before the
        first request. The store of one's own process knows no roles.
        """

    def for_other_loop(self) -> Store:
        """Return this store for the event loop of another thread: itself, if its coroutines may be awaited
        from any loop, else one that is closed by the caller, on that loop.
        """
        return self


OPERATIONS: Final = frozenset(
    name for name, method in vars(Store).items() if iscoroutinefunction(method) and name != "close"
)
"""The methods that another process may ask for, alone or in a batch."""


def _only(found: Sequence[T], request_id: str | None) -> T:
    """Return the answer to a request for one thing. Another number of answers is that of another request."""
    if len(found) != 1:
        raise Conflict(
            f"request id {request_id} was already used for another request, of {len(found)} things"
        )
    return found[0]
