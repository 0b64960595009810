"""Opens the parts of a run as its description says, and closes them in reverse, whatever happens.

One process holds store, gateway and runner on one event loop and the agents on another; the driver's engine
is a process of its own. The order of :meth:`TrainingSession.open` is the flow: store → gateway → driver's
engine → runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import AgentResources, Context, Losses
from agentlightning.algorithms.evaluate import Counting, Evaluations, check_clusters
from agentlightning.algorithms.evaluations import read_sets
from agentlightning.algorithms.journal import saved_steps
from agentlightning.algorithms.tasks import read_dataset
from agentlightning.child_environment import hide_secrets
from agentlightning.gateway.base import RunGateway
from agentlightning.plugins.manager import Plugins
from agentlightning.plugins.runners import open_runner
from agentlightning.plugins.stores import open_store
from agentlightning.roles import Role
from agentlightning.runner.agent.adapters import instrumentors
from agentlightning.runner.agent.hosted import HostedAgent
from agentlightning.runner.runner import Runner, serve_within
from agentlightning.specs import RemoteRunner, RunnerJob
from agentlightning.store import Store, StoreClient
from agentlightning.trackers import TrackerHooks
from agentlightning.trackers.choice import open_trackers
from agentlightning.train.algorithm import recipe_of
from agentlightning.train.artifacts.fetching import fetch_run
from agentlightning.train.artifacts.keeper import ArtifactKeeper
from agentlightning.train.callbacks import make_callbacks
from agentlightning.train.description.run_config import RunConfig
from agentlightning.train.log import log_of_all_runs
from agentlightning.train.log.run_log import run_log
from agentlightning.train.run_folder import RunFolder, open_run_folder, say
from agentlightning.train.run_record import record_run, run_info
from agentlightning.train.services.gateways import open_gateway
from agentlightning.train.services.metrics_port import RunMetrics
from agentlightning.train.services.serving import serve, serve_scripted
from agentlightning.types import Resource, UsageError

Data = Any
"""A dataset in any form that :func:`read_dataset` reads."""


@dataclass(frozen=True, slots=True)
class TrainingSession:
    """The parts of one run."""

    config: RunConfig
    plugins: Plugins
    hosted: HostedAgent
    """The agent as the run's runner calls it."""
    initial_resources: Mapping[str, Resource | str | dict[str, Any]] = field(default_factory=dict)
    artifacts: str | None = None
    """URL of object storage at which the run's files are kept."""

    @asynccontextmanager
    async def open(
        self, agent: Any, train: Data = (), val: Data = (), *, serve_policy: bool = True
    ) -> AsyncIterator[Context]:
        """Open all parts. ``serve_policy=False``: for a user's own algorithm that trains no policy."""
        hide_secrets()
        config, policies = self.config, self.config.served
        train, val = read_dataset(train, "training tasks"), read_dataset(val, "held-out tasks")
        sets = read_sets(config.evaluation.sets, self.plugins)
        for name, tasks in (("held-out tasks", val), *sets.items()):
            check_clusters(tasks, config.evaluation.cluster, name)
        async with AsyncExitStack() as stack:
            await self._fetch_run()
            run = open_run_folder(
                Path(config.output),
                config.agent.name,
                config.training.seed,
                run=config.run,
                resume=config.resume,
            )
            stack.callback(run.close)
            keeper = await self._keeper(run, stack)
            page = RunMetrics() if config.metrics is not None else None
            own = [*keeper, *([page] if page is not None else [])]
            plugins, trackers = self._plugins_with_listeners(run.folder, own, stack)
            if page is not None and config.metrics is not None:
                say(f"Metrics: {await stack.enter_async_context(page.serve(config.metrics))}")
            store = self._store(run.folder, stack)
            gateway = await self._gateway(store, plugins, stack)
            remote = self._remote_runner(store, gateway, run.run_id)
            active = instrumentors(self.plugins, config.agent.adapters)
            stack.enter_context(self.hosted.capturing(active))
            driver = await self._driver(gateway, stack) if serve_policy else None
            await serve_scripted(config.environment.headroom, val, gateway, stack, plugins, policies.names)
            context = Context(
                run_id=run.run_id,
                folder=run.folder,
                store=store,
                gateway=gateway,
                plugins=plugins,
                seed=config.training.seed,
                train=train,
                val=val,
                sets=sets,
                driver=driver,
                resources=AgentResources(
                    policies.model_name,
                    policies.names if policies.named and serve_policy else (),
                    config.environment.headroom,
                    dict(self.initial_resources),
                    serve_policy,
                ),
                config=config.agent.rollout_config(config.training.failure, trusted=self._trusts(agent)),
                evaluations=Evaluations(Counting(config.training.failure, config.evaluation.cluster)),
                losses=Losses(trackers=trackers.errors),
                say=say,
            )
            await record_run(
                context,
                run_info(config, recipe_of(config, self.plugins), context, agent),
                resumed=run.resumed,
            )
            run.started = True
            gateway.moved = partial(context.resources.publish, store, gateway)
            try:
                self._start_runner(context, remote, stack)
                yield context
            except BaseException as error:
                context.plugins.notify("agl_run_failed", run_id=run.run_id, error=error)
                if self.config.trackers != []:  # the doctor's probe has none, and leaves no folder
                    say(f"The run did not finish. What there is of it: {run.folder}")
                    after = f"after {saved_steps(run.folder)} of {config.training.steps} steps"
                    say(f"To go on with it {after}: --run {run.folder.name} --resume")
                raise

    def _trusts(self, agent: Any) -> bool:
        """Whether the agent is the user's own code, and runs where the user's code runs."""
        kind = (self.config.runner or {}).get("kind")
        spec = self.plugins.runners.get(kind) if kind is not None else None
        return bool(getattr(agent, "trusted", True)) and (spec is None or spec.trusted)

    async def _fetch_run(self) -> None:
        """Bring the run that is resumed from where its files are kept, if it is not here."""
        if self.artifacts is not None and self.config.resume and self.config.run is not None:
            output = Path(self.config.output)
            await asyncio.to_thread(fetch_run, self.artifacts, output, self.config.run, say)

    async def _keeper(self, run: RunFolder, stack: AsyncExitStack) -> list[ArtifactKeeper]:
        """Return what keeps the run's files elsewhere, if they are to be kept. It closes after all that
        writes to the folder.
        """
        if self.artifacts is None:
            return []
        keeper = await asyncio.to_thread(ArtifactKeeper, self.artifacts, run.folder, say)
        stack.push_async_callback(lambda: asyncio.to_thread(keeper.close, started=run.started))
        return [keeper]

    def _plugins_with_listeners(
        self, folder: Path, more: Sequence[object], stack: AsyncExitStack
    ) -> tuple[Plugins, TrackerHooks]:
        """Return the plugins with this run's log and trackers; a tracker may have hooks of its own too."""
        trackers = open_trackers(self.plugins.trackers, self.config.trackers, folder)
        tracker_hooks = TrackerHooks(trackers)
        stack.callback(tracker_hooks.close)
        logs = []
        if self.config.trackers != []:  # the doctor's probe has none, and leaves no line
            logs.append(stack.enter_context(run_log(folder, log_of_all_runs(self.config.log))))
        listeners = [*logs, *make_callbacks(self.config.callbacks), *more, tracker_hooks, *trackers]
        return self.plugins.with_listeners(listeners), tracker_hooks

    def _store(self, folder: Path, stack: AsyncExitStack) -> Store:
        """Return the given store, opened if it is a place; without one, a file in the run's folder."""
        given = self.config.store
        if given is not None and not isinstance(given, str | Path):
            store: Store = given
            return store
        store = open_store(folder / "store.sqlite" if given is None else given, plugins=self.plugins)
        if isinstance(store, StoreClient):
            store.act_as(Role.TRAINER)
        stack.push_async_callback(store.close)
        return store

    async def _gateway(self, store: Store, plugins: Plugins, stack: AsyncExitStack) -> RunGateway:
        config = self.config
        calls = config.routed_agent
        if self.hosted.select is not None:
            calls = calls.model_copy(update={"select": self.hosted.select})
        return await open_gateway(config, calls, store, plugins, stack)

    async def _driver(self, gateway: RunGateway, stack: AsyncExitStack) -> Any:
        policies = self.config.served
        if policies.named and (clash := sorted({*self.initial_resources} & {*policies.names})):
            raise UsageError(f"initial_resources: {clash[0]!r} is the name of a policy; choose another")
        if not policies.names:
            raise UsageError(
                "no policy: give the folder of a model in Hugging Face layout, e.g. "
                "policy='examples/calc_x/policy'"
            )
        return await serve(self.config, recipe_of(self.config, self.plugins), self.plugins, gateway, stack)

    def _remote_runner(self, store: Store, gateway: RunGateway, run_id: str) -> RemoteRunner | None:
        """Return the runner that ``runner`` names; ``None``: the agent runs in this process."""
        if self.config.runner is None:
            return None
        if self.hosted.only_here:
            raise UsageError(f"runner: {self.hosted.only_here}")
        job = RunnerJob(self.config, store, self.hosted.agent, run_id, gateway.url)
        return open_runner(self.plugins, job)

    def _start_runner(self, context: Context, remote: RemoteRunner | None, stack: AsyncExitStack) -> None:
        """Have the agent run: elsewhere (``remote``), by runners of others (``concurrency=0``), or in this
        process.
        """
        if remote is not None:
            context.losses.attempts = remote.counts
            context.runner = serve_within(stack, remote.serve)
            return
        settings = self.config.routed_agent
        if not settings.concurrency:
            return
        runner = Runner(
            self.hosted,
            context.store,
            settings,
            attempt_keys=context.gateway,
            plugins=context.plugins,
            run_id=context.run_id,
        )
        context.losses.attempts = runner.counts
        context.runner = runner.serve_within(stack)
