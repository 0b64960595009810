"""Opens the parts of a run as its description says, and closes them in reverse, whatever happens.

One process holds store, gateway and runner on one event loop and the agents on another; the driver's engine
is a process of its own. The order of :meth:`TrainingSession.open` is the flow: store → gateway → driver's
engine → runner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pluggy

from agentlightning import hookspecs, specs
from agentlightning.algorithms.context import AgentResources, Context, Losses
from agentlightning.algorithms.evaluate import Counting, Evaluations, check_clusters
from agentlightning.algorithms.evaluations import read_sets
from agentlightning.algorithms.journal import saved_steps
from agentlightning.algorithms.tasks import read_dataset
from agentlightning.child_environment import hide_secrets
from agentlightning.gateway import Gateway
from agentlightning.gateway.base import RunGateway
from agentlightning.keys import Keys
from agentlightning.plugins.manager import Plugins
from agentlightning.plugins.options import open_runner
from agentlightning.plugins.stores import open_store
from agentlightning.plugins.suite import not_installed
from agentlightning.redaction import redacted
from agentlightning.runner.agent import HostedAgent, instrumentors
from agentlightning.runner.runner import Runner, serve_within
from agentlightning.specs import CallGuard, Comparison, GatewayJob, RemoteRunner, RunnerJob
from agentlightning.store import Store
from agentlightning.store.places import artifact_place
from agentlightning.trackers import TrackerHooks, open_trackers
from agentlightning.train.config import RunConfig
from agentlightning.train.run_folder import RunFolder, open_run_folder, say
from agentlightning.train.run_record import record_run, run_info, stored_run
from agentlightning.train.serving import serve
from agentlightning.types import Call, Recipe, Resource, UsageError
from agentlightning.types.base import ConfigError

Data = Any
"""A dataset in any form that :func:`read_dataset` reads."""


@dataclass(frozen=True, slots=True)
class TrainingSession:
    """The parts of one run."""

    config: RunConfig
    recipe: Recipe
    plugins: Plugins
    hosted: HostedAgent
    """The agent as the run's runner calls it."""
    initial_resources: Mapping[str, Resource | str | dict[str, Any]] = field(default_factory=dict)
    services: bool = True
    """Whether the run has what lives as long as it does (hook ``agl_run_services``)."""

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
        asked: dict[str, Any] = {"config": self.config, "plugins": self.plugins}
        guards: list[CallGuard] = [*self.plugins.answers("agl_call_guards", **asked)]
        comparisons: list[Comparison] = [*self.plugins.answers("agl_comparisons", **asked)]
        rewards: list[specs.GroupReward] = [*self.plugins.answers("agl_group_rewards", **asked)]
        edits: list[specs.BatchEdit] = [*self.plugins.answers("agl_batch_edits", recipe=self.recipe, **asked)]
        async with AsyncExitStack() as last, AsyncExitStack() as stack:
            listeners = [*guards, *await self._services(stack)]
            run = open_run_folder(
                Path(config.output),
                config.agent.name,
                config.training.seed,
                run=config.run,
                resume=config.resume,
            )
            last.callback(run.close)
            listeners += await self._services(stack, run.folder)
            plugins, trackers = self._plugins_with_listeners(run.folder, listeners, stack)
            store = self._store(run.folder, stack)
            await self._begin_guards(guards, store, run)
            gateway = await self._gateway(store, plugins, guards, stack)
            runner = self._runner(store, gateway, plugins, run.run_id)
            active = instrumentors(self.plugins, config.agent.adapters)
            stack.enter_context(self.hosted.capturing(active))
            driver = await self._driver(gateway, stack) if serve_policy else None
            context = Context(
                run_id=run.run_id,
                folder=run.folder,
                store=store,
                gateway=gateway,
                plugins=plugins,
                seed=config.training.seed,
                guards=guards,
                comparisons=comparisons,
                group_rewards=rewards,
                edits=edits,
                train=train,
                val=val,
                sets=sets,
                driver=driver,
                resources=AgentResources(
                    policies.model_name,
                    policies.names if policies.named and serve_policy else (),
                    initial=dict(self.initial_resources),
                    serve_policy=serve_policy,
                ),
                config=config.agent.rollout_config(config.training.failure, trusted=self._trusts(agent)),
                evaluations=Evaluations(Counting(config.training.failure, config.evaluation.cluster)),
                losses=Losses(trackers=trackers.errors),
                say=say,
            )
            parts: list[specs.RunPart] = [*comparisons, *rewards, *edits]
            for one in parts:
                await stack.enter_async_context(one.open(context))
            await record_run(context, run_info(config, self.recipe, context, agent), resumed=run.resumed)
            run.started = True
            gateway.moved = partial(context.resources.publish, store, gateway)
            try:
                self._start_runner(context, runner, stack)
                yield context
            except BaseException as error:
                context.plugins.ask("agl_run_failed", run_id=run.run_id, error=error)
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

    async def _services(self, stack: AsyncExitStack, folder: Path | None = None) -> list[object]:
        """Open what lives as long as the run, and return what listens to it. ``folder``: that of the run, for
        what writes into it.
        """
        if not self.services:
            return []
        place = artifact_place()
        if place is not None and "storage" not in self.plugins.run_services:
            raise UsageError(f"AGL_STORAGE={redacted(place)}: {not_installed('service', 'storage')}")
        specs = self.plugins.run_services.values()
        if folder is None:
            opened = [spec.open(self.config) for spec in specs if spec.open is not None]
        else:
            opened = [spec.open_in(self.config, folder) for spec in specs if spec.open_in is not None]
        return [await stack.enter_async_context(one) for one in opened if one is not None]

    def _plugins_with_listeners(
        self, folder: Path, more: Sequence[object], stack: AsyncExitStack
    ) -> tuple[Plugins, TrackerHooks]:
        """Return the plugins with this run's trackers; a tracker may have hooks too."""
        trackers = open_trackers(self.plugins.trackers, self.config.trackers, folder)
        tracker_hooks = TrackerHooks(trackers)
        stack.callback(tracker_hooks.close)
        listeners = [*make_callbacks(self.config.callbacks), *more, tracker_hooks, *trackers]
        return self.plugins.with_listeners(listeners), tracker_hooks

    def _store(self, folder: Path, stack: AsyncExitStack) -> Store:
        """Return the given store, opened if it is a place; without one, a file in the run's folder."""
        given = self.config.store
        if given is not None and not isinstance(given, str | Path):
            store: Store = given
            return store
        store = open_store(folder / "store.sqlite" if given is None else given, plugins=self.plugins)
        store.act_as("trainer")
        stack.push_async_callback(store.close)
        return store

    async def _begin_guards(self, guards: Sequence[CallGuard], store: Store, run: RunFolder) -> None:
        """Give the guards the run's record, if it has one."""
        known = await stored_run(store, run.run_id) if guards and run.resumed else None
        for guard in guards:
            recorded = (known or {}).get(guard.name) or {}
            await guard.begin(store, run.run_id, recorded)

    async def _gateway(
        self, store: Store, plugins: Plugins, guards: Sequence[CallGuard], stack: AsyncExitStack
    ) -> RunGateway:
        config = self.config
        calls = config.routed_agent
        if self.hosted.select is not None:
            calls = calls.model_copy(update={"select": self.hosted.select})
        on_call = None  # the gateway then makes nothing for it
        if plugins.has_listeners("agl_call_recorded"):
            on_call = partial(_call_recorded, plugins)
        job = GatewayJob(config, calls, store, Keys.from_env(), on_call, plugins, guards)
        if (elsewhere := plugins.first("agl_gateways", job=job)) is not None:
            opened: RunGateway = await stack.enter_async_context(elsewhere)
            return opened
        gateway = Gateway(
            store, job.keys, config.gateway, calls, on_call=on_call, guards=guards, plugins=plugins
        )
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        return gateway

    async def _driver(self, gateway: RunGateway, stack: AsyncExitStack) -> Any:
        policies = self.config.served
        if policies.named and (clash := sorted({*self.initial_resources} & {*policies.names})):
            raise UsageError(f"initial_resources: {clash[0]!r} is the name of a policy; choose another")
        if not policies.names:
            raise UsageError(
                "no policy: give the folder of a model in Hugging Face layout, e.g. "
                "policy='examples/calc_x/policy'"
            )
        return await serve(self.config, self.recipe, self.plugins, gateway, stack)

    def _runner(
        self, store: Store, gateway: RunGateway, plugins: Plugins, run_id: str
    ) -> Runner | RemoteRunner | None:
        """Return what runs the agent: the runner that ``runner`` names, or one in this process; ``None``:
        runners of others do (``concurrency=0``). It is made before the driver starts, so that a run without
        its parts is refused at once.
        """
        if self.config.runner is not None:
            if self.hosted.only_here:
                raise UsageError(f"runner: {self.hosted.only_here}")
            job = RunnerJob(self.config, store, self.hosted.agent, run_id, gateway.url)
            return open_runner(self.plugins, job)
        settings = self.config.routed_agent
        if not settings.concurrency:
            return None
        return Runner(self.hosted, store, settings, attempt_keys=gateway, plugins=plugins, run_id=run_id)

    def _start_runner(
        self, context: Context, runner: Runner | RemoteRunner | None, stack: AsyncExitStack
    ) -> None:
        """Have the agent run until the run ends."""
        if runner is None:
            return
        context.losses.attempts = runner.counts
        ends = [runner.end_soon] if isinstance(runner, Runner) else []
        context.runner = serve_within(stack, runner.serve, *ends)


async def finish(
    context: Context, result: Mapping[str, Any], seconds: float, exported: Path | None = None
) -> dict[str, Any]:
    """End the run's record, and return its summary: ``result`` and what was counted. ``exported``: folder of
    the trained policy.
    """
    summary = {
        "run_id": context.run_id,
        "seed": context.seed,
        **result,
        "total_seconds": round(seconds + context.earlier.get("total_seconds", 0.0), 3),
        "accounts": await context.accounts(),
        **context.guarded(),
        **({} if exported is None else {"policy": str(exported)}),
    }
    summary["chain"] = await context.journal.end(summary, exported)
    await context.store.update_run(context.run_id, {"summary": summary, **context.guarded()})
    context.plugins.ask("agl_run_finished", summary=summary)
    return summary


def make_callbacks(given: Sequence[Any]) -> list[Any]:
    """Return the callbacks of a run; a class is called without arguments. Raise :class:`ConfigError` for one
    without a hook, or with a hook that there is not.
    """
    return [_checked(one() if isinstance(one, type) else one) for one in given]


def _checked(callback: Any) -> Any:
    manager = pluggy.PluginManager("agentlightning")
    manager.add_hookspecs(hookspecs)
    what = getattr(callback, "__name__", type(callback).__name__)
    try:
        manager.register(callback)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise ConfigError(f"callbacks: {what}: {error}") from None
    if not manager.get_hookcallers(callback):
        raise ConfigError(
            f"callbacks: {what} has no hook: mark its methods with @agentlightning.hookimpl and name them as "
            "in docs/contributing/hooks.md"
        )
    return callback


def _call_recorded(plugins: Plugins, call: Call) -> None:
    plugins.ask("agl_call_recorded", call=call)
