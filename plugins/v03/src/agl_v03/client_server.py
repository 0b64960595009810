"""The server of tasks of Agent Lightning 0.1, its client, and tasks without a server, over the store of
today.

The server serves a store (``docs/contributing/store.md``), so that its client, ``Trainer(…).fit(agent,
url)``, ``agl runner`` and :class:`~agl_cluster.store.client.StoreClient` are all served by it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.emit import find_final_reward, returned_reward_span
from agentlightning.plugins.stores import open_store
from agentlightning.runner.ending import EndWriter
from agentlightning.runner.threads import run_sync
from agentlightning.store.base import NotFound, Store
from agentlightning.store.places import store_place
from agentlightning.types import (
    AttemptedRollout,
    Resource,
    Resources,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    UsageError,
    new_id,
)
from agl_audit.store.trace import query_spans
from agl_v03.converters import TracerTraceToTriplet
from agl_v03.former_agents import RolloutLegacy
from agl_v03.hooks import HookedAgent
from agl_v03.lit_agent import LitAgent
from agl_v03.stores.server import LightningStoreServer
from agl_v03.supplied import read_result

T = TypeVar("T")


async def report_of(store: Store, rollout: Rollout) -> RolloutLegacy:
    """Return what the runner of 0.1 reported of a rollout that has ended. One that failed has no reward."""
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    spans = await query_spans(store, rollout.rollout_id, attempt.attempt_id) if attempt is not None else []
    ended_well = rollout.status is RolloutStatus.SUCCEEDED
    return RolloutLegacy(
        rollout_id=rollout.rollout_id,
        final_reward=find_final_reward(spans) if ended_well else None,
        triplets=TracerTraceToTriplet().adapt(spans) if ended_well else None,
        trace=[span.model_dump() for span in spans],
        metadata={**rollout.metadata, **({"reason": rollout.reason} if rollout.reason else {})},
    )


class AgentLightningServer:
    """Queues tasks for agents that run elsewhere, and collects what they report.

    It keeps them in memory, or where ``AGL_STORAGE`` says. A task whose agent is silent for
    ``task_timeout_seconds`` is queued again.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 8000, task_timeout_seconds: float = 300.0
    ) -> None:
        self.host, self.port = host, port
        self.endpoint = f"http://{host}:{port}"
        self._silence = task_timeout_seconds
        self._server: LightningStoreServer | None = None
        self._queued: list[str] = []
        self._taken: set[str] = set()

    async def start(self) -> None:
        """Serve."""
        store = open_store(None if store_place() else ":memory:")
        server = LightningStoreServer(store, self.host, self.port)
        await server.start()
        self._server, self.endpoint = server, server.endpoint

    async def stop(self) -> None:
        """Stop serving, and forget what is kept in memory."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()

    async def run_forever(self) -> None:
        """Serve until the task is cancelled."""
        await self.start()
        try:
            await asyncio.Event().wait()
        finally:
            await self.stop()

    @property
    def _store(self) -> Store:
        if self._server is None:
            raise UsageError("the server is not running: await server.start()")
        store: Store = self._server.store
        return store

    async def queue_task(
        self,
        sample: Any,
        mode: Literal["train", "val", "test"] | None = None,
        resources_id: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Queue a task and return its id. ``resources_id``: default, the latest resources."""
        config = RolloutConfig(unresponsive_seconds=self._silence, retry_on=["unresponsive"])
        queued = await self._store.enqueue_rollout(sample, mode or "train", resources_id, config, metadata)
        self._queued.append(queued.rollout_id)
        return queued.rollout_id

    async def update_resources(self, resources: Mapping[str, Resource]) -> str:
        """Make these the latest resources and return their id."""
        return (await self._store.add_resources(dict(resources))).resources_id

    async def get_completed_rollout(self, rollout_id: str) -> RolloutLegacy | None:
        """Return the report of a task, once; ``None`` before its end and afterwards."""
        if rollout_id in self._taken:
            return None
        try:
            rollout = await self._store.get_rollout_by_id(rollout_id)
        except NotFound:
            return None
        if not rollout.status.final:
            return None
        self._taken.add(rollout_id)
        return await report_of(self._store, rollout)

    async def poll_completed_rollout(
        self, rollout_id: str, timeout: float | None = None
    ) -> RolloutLegacy | None:
        """Wait for the report of a task, at most ``timeout`` seconds, and return it, or ``None``."""
        await self._store.wait_for_rollouts([rollout_id], timeout)
        return await self.get_completed_rollout(rollout_id)

    async def retrieve_completed_rollouts(self) -> list[RolloutLegacy]:
        """Return the reports that were not asked for yet."""
        found = [await self.get_completed_rollout(one) for one in self._queued]
        return [one for one in found if one is not None]


class AgentLightningClient:
    """Takes tasks of the server at ``endpoint``, by hand. ``Trainer(…).fit(agent, endpoint)`` does it all."""

    def __init__(self, endpoint: str, poll_interval: float = 5.0, timeout: float = 10.0) -> None:
        self.endpoint, self.poll_interval, self.timeout = endpoint, poll_interval, timeout
        self.task_count = 0
        self._worker = new_id("worker")
        self._leases: dict[str, AttemptedRollout] = {}

    async def poll_next_task_async(self) -> Rollout:
        """Wait for a task and return it."""
        async with _opened(self.endpoint) as store:
            while not (leased := await store.dequeue_many_rollouts(self._worker, 1, wait=self.poll_interval)):
                pass
        self.task_count += 1
        self._leases[leased[0].rollout.rollout_id] = leased[0]
        return leased[0].rollout

    async def get_resources_by_id_async(self, resource_id: str) -> Resources | None:
        """Return resources, or ``None`` for an unknown id."""
        async with _opened(self.endpoint) as store:
            try:
                return await store.get_resources_by_id(resource_id)
            except NotFound:
                return None

    async def get_latest_resources_async(self) -> Resources | None:
        """Return the latest resources, or ``None`` if there are none."""
        async with _opened(self.endpoint) as store:
            return await store.get_latest_resources()

    async def post_rollout_async(self, rollout: RolloutLegacy) -> dict[str, Any]:
        """Report a task that :meth:`poll_next_task` returned: its reward, its transitions."""
        lease = self._leases.pop(rollout.rollout_id, None)
        if lease is None:
            raise UsageError(f"{rollout.rollout_id} is no task of this client: poll_next_task() comes first")
        async with _opened(self.endpoint) as store:
            await _write_report(store, lease, rollout)
        return {"status": "ok", "message": f"Rollout {rollout.rollout_id} received and stored."}

    def poll_next_task(self) -> Rollout:
        """As :meth:`poll_next_task_async`."""
        return _now(self.poll_next_task_async())

    def get_resources_by_id(self, resource_id: str) -> Resources | None:
        """As :meth:`get_resources_by_id_async`."""
        return _now(self.get_resources_by_id_async(resource_id))

    def get_latest_resources(self) -> Resources | None:
        """As :meth:`get_latest_resources_async`."""
        return _now(self.get_latest_resources_async())

    def post_rollout(self, rollout: RolloutLegacy) -> dict[str, Any]:
        """As :meth:`post_rollout_async`."""
        return _now(self.post_rollout_async(rollout))


class DevTaskLoader:
    """Tasks and resources without a server, for ``Trainer(dev=True).fit(agent, url, loader)``.

    ``tasks``: inputs, or :class:`.Rollout`. ``rollouts``: the reports, when they have run.
    """

    def __init__(
        self, tasks: Sequence[Any], resources: Mapping[str, Resource] | Resources, **client: Any
    ) -> None:
        if not len(tasks):
            raise ValueError("DevTaskLoader: there is no task")
        if 0 < sum(isinstance(task, Rollout) for task in tasks) < len(tasks):
            raise ValueError("DevTaskLoader: some tasks are inputs and some are rollouts; give one kind")
        self.tasks = [
            one if isinstance(one, Rollout) else Rollout(rollout_id="", input=one, mode="val")
            for one in tasks
        ]
        given = resources.resources if isinstance(resources, Resources) else resources
        self.resources: dict[str, Resource] = dict(given)
        self.rollouts: list[RolloutLegacy] = []

    def __repr__(self) -> str:
        return f"DevTaskLoader(num_tasks={len(self.tasks)}, resources={self.resources})"


def _now(work: Coroutine[Any, Any, T]) -> T:
    return run_sync(lambda: work)


@asynccontextmanager
async def _opened(endpoint: str) -> AsyncIterator[Store]:
    store = open_store(endpoint)
    try:
        yield store
    finally:
        await store.close()


async def _write_report(store: Store, lease: AttemptedRollout, report: RolloutLegacy) -> None:
    """Write the end of an attempt with what was reported of it."""
    ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
    context = AttemptContext(*ids, sink=lambda span: None)
    with attempt_context(context):
        outcome = read_result(report.triplets or report.final_reward, context)
        if report.triplets and report.final_reward is not None:
            outcome.returned.append(returned_reward_span(report.final_reward))
    agent = HookedAgent(LitAgent[Any]())  # it ran elsewhere
    await EndWriter(agent, store, Counter(), calls_recorded=False).write(lease, outcome, [])
