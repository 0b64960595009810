"""``LitAgentRunner``, the runner of v0.3: an agent, a store and a loop in three lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from agentlightning.plugins.manager import load
from agentlightning.runner.agent import instrumentors
from agentlightning.runner.runner import Runner, StopEvent
from agentlightning.runner.settings import Isolation, RunnerSection
from agentlightning.store.base import Store
from agentlightning.types import Mode, Resource, Rollout, UsageError, new_id
from agl_cluster.runners.attempt_keys import attempt_keys_for
from agl_v03.hooks import HookedAgent
from agl_v03.stores.v03_store import V03Store, plain_store
from agl_v03.strategy import check_tracer

T = TypeVar("T")


class LitAgentRunner(Generic[T]):
    """Runs an agent on rollouts of a store::

        runner = agl.LitAgentRunner[str]()
        with runner.run_context(agent=solve, store=store):
            await runner.iter()

    ``tracer``: whether to capture (:mod:`agl_v03.tracer`); ``None``: yes. ``concurrency``,
    ``isolation`` and ``adapters``: as for :class:`~agentlightning.runner.Runner`. If the resources point at a
    gateway of ours, ``AGL_SECRET`` must be set: it mints the keys of attempts.
    """

    def __init__(
        self,
        tracer: Any = None,
        max_rollouts: int | None = None,
        *,
        concurrency: int = 1,
        isolation: Isolation = "inline",
        adapters: str | Sequence[str] = (),
        timeout: float | None = None,
    ) -> None:
        self.tracer = tracer
        check_tracer(tracer, isolation)
        self.max_rollouts = max_rollouts
        self._settings = RunnerSection(
            concurrency=concurrency,
            isolation=isolation,
            timeout_seconds=timeout,
            adapters=[adapters] if isinstance(adapters, str) else [*adapters],
        )
        self._runner: Runner | None = None

    @contextmanager
    def run_context(
        self, *, agent: Any, store: Store | V03Store, worker_id: str | None = None, hooks: Sequence[Any] = ()
    ) -> Iterator[LitAgentRunner[T]]:
        """Capture within the block, and let :meth:`iter` and :meth:`step` run ``agent`` on ``store``."""
        plugins = load()
        hooked = HookedAgent(agent, hooks, self.tracer)
        self._runner = Runner(
            hooked,
            plain_store(store),
            self._settings,
            attempt_keys=attempt_keys_for(plain_store(store)),
            plugins=plugins,
            worker_id=worker_id or new_id("worker"),
        )
        hooked.runner = self
        try:
            with hooked.capturing(instrumentors(plugins, self._settings.adapters)):
                yield self
        finally:
            self._runner = None

    @property
    def runner(self) -> Runner:
        """The runner of the current :meth:`run_context`."""
        if self._runner is None:
            raise UsageError("there is no agent yet: `with runner.run_context(agent=…, store=store): …`")
        return self._runner

    async def iter(self, *, event: StopEvent | None = None, max_rollouts: int | None = None) -> None:
        """Serve the queue until ``event`` (of asyncio or threading) is set, or ``max_rollouts`` have run."""
        await self.runner.serve(event, limit=max_rollouts if max_rollouts is not None else self.max_rollouts)

    async def step(
        self,
        input: T,
        *,
        resources: Mapping[str, Resource | str] | None = None,
        resources_id: str | None = None,
        mode: Mode = "train",
    ) -> Rollout:
        """Run one task past the queue and return the finished rollout. ``resources``: stored first."""
        runner = self.runner
        if resources is not None:
            if resources_id is not None:
                raise UsageError("step(): give either resources or resources_id")
            resources_id = (await runner.store.add_resources(dict(resources))).resources_id
        try:
            return await runner.step(input, resources_id, mode=mode)
        finally:
            await runner.close()
