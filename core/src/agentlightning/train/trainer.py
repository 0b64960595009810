"""The trainer: opens what a run needs, hands it to the algorithm, closes everything.

One process holds store, gateway and runner on one event loop and the agents on another; the driver's engine
is a process of its own.
The order of :meth:`Trainer.session` is the flow: store → gateway → driver's engine → runner → algorithm.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from copy import copy
from pathlib import Path
from typing import Any

from agentlightning.algorithms.baseline import Baseline
from agentlightning.algorithms.context import Context, TrainingLoop
from agentlightning.algorithms.custom import BoundAlgorithm, as_algorithm, refuse_rl_settings
from agentlightning.algorithms.recipe_checks import (
    check_credit_fields,
    check_deterministic,
    check_supported_fields,
)
from agentlightning.algorithms.rollouts.datasets import read_dataset
from agentlightning.algorithms.rollouts.quorum import read_quorum
from agentlightning.algorithms.verl_config import VERL
from agentlightning.capture.instrument.sessions import capturing_for
from agentlightning.compat.v0.converters.selection import selection
from agentlightning.compat.v0.strategy import Strategy, background, check_tracer, read_strategy
from agentlightning.decorator.agents import as_agent
from agentlightning.gateway import Gateway
from agentlightning.gateway.listen import parse_listen
from agentlightning.keys import Keys
from agentlightning.plugins.manager import Plugins, load as load_plugins, pick
from agentlightning.runner import Runner
from agentlightning.runner.adapters import instrumentors, listed
from agentlightning.runner.event_loops.threads import run_sync
from agentlightning.runner.hooks import with_hooks
from agentlightning.runner.runner import Isolation
from agentlightning.store import Store, open_store
from agentlightning.trackers import TrackerHooks
from agentlightning.train.run_folder import (
    data_digest,
    open_run_folder,
    record_run,
    report_unfinished,
    say,
    versions,
)
from agentlightning.train.serving import (
    Policies,
    PolicySource,
    driver_spec,
    read_policies,
    serve,
    serve_scripted,
)
from agentlightning.types import Call, Recipe, Resource, UsageError
from agentlightning.types.failure import MAX_ATTEMPTS, read_failure_table, rollout_config
from agentlightning.types.work import UNRESPONSIVE_SECONDS

Data = Any
"""A dataset: what :func:`read_dataset` reads."""


class Trainer:
    """Trains an agent.

    ``algorithm``: a :class:`Recipe`, the name of one, :class:`VERL` (which brings recipe, driver and
    options), a function (:func:`agl.algo`), or an object with ``async run(context)``. ``driver``: who runs
    the recipe; ``options`` are its own settings.

    ``policy``: folder of the model to start from; or several by name, each a folder, a :class:`PolicyFolder`,
    or an :class:`LLM`, which is asked and never trained. ``policies``: who talks to whom, ``{agent, role,
    node or "re:pattern": policy}``, the first that matches; all others, to the only policy that is trained.

    ``n_runners``: rollouts at a time in this process, 0 for runners elsewhere (``agl runner``);
    ``isolation``: ``process`` gives each a process that can be killed. ``timeout``, ``unresponsive``
    (seconds) and ``max_attempts``: how a rollout is tried. ``emitted_overrides_returned``: whether a reward
    that the agent emits counts although it returns another. ``failure``: the failure table
    (:mod:`agentlightning.types.failure`). ``quorum``: when a step goes on without its slowest rollouts
    (:mod:`agentlightning.algorithms.rollouts.quorum`). ``async_steps``: later steps whose rollouts are under
    way while a step is trained. ``dynamic_sampling``: further batches a step may take until ``batch_size``
    groups have a spread.

    ``listen``: where the gateway listens (``host:port``; default: a free port of 127.0.0.1), ``advertise``:
    the URL that runners on other machines reach it at (:mod:`agentlightning.gateway.listen`).
    ``gateway``: settings of the trained policy's route (``over_length``, ``reserve``, ``max_len``,
    ``reasoning``). ``headroom``: scripted policies, each ``tasks -> script`` of a ScriptedModelServer.

    ``folder``: where runs go; each gets ``<folder>/<run id>`` with its store, metrics, checkpoints and
    summary. ``run``: its id; none: after time, name and seed. ``resume``: go on with ``run``, or with the
    latest of this name and seed.

    Names of v0.3: ``tracer`` (:mod:`agentlightning.compat.v0.tracer`), ``adapter`` (a converter, for the
    algorithm), ``strategy`` (:mod:`agentlightning.compat.v0.strategy`), ``initial_resources``, ``hooks``.
    """

    def __init__(
        self,
        algorithm: Any = "grpo",
        *,
        policy: PolicySource | Mapping[str, PolicySource] | None = None,
        policies: Mapping[str, str] | None = None,
        driver: str = "local",
        options: dict[str, Any] | None = None,
        steps: int = 40,
        batch_size: int = 8,
        n_runners: int = 16,
        isolation: Isolation = "inline",
        timeout: float | None = 60.0,
        unresponsive: float | None = UNRESPONSIVE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
        emitted_overrides_returned: bool = False,
        select: str | list[str] | None = None,
        gateway: Mapping[str, Any] | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        adapters: str | Sequence[str] = (),
        headroom: dict[str, Callable[..., Any]] | None = None,
        headroom_tasks: int = 100,
        evaluate_every: int = 0,
        failure: Mapping[str, Any] | None = None,
        quorum: Mapping[str, Any] | None = None,
        async_steps: int = 0,
        dynamic_sampling: int = 0,
        seed: int = 1,
        folder: str | Path = "runs",
        run: str | None = None,
        resume: bool = False,
        store: Store | str | Path | None = None,
        trackers: str | Sequence[str] | None = None,
        plugins: Plugins | None = None,
        name: str = "agent",
        note: str | None = None,
        tracer: Any = None,
        adapter: Any = None,
        strategy: str | Mapping[str, Any] | Strategy | None = None,
        initial_resources: Mapping[str, Resource | str | dict[str, Any]] | None = None,
        hooks: Sequence[Any] = (),
    ) -> None:
        if isinstance(algorithm, VERL):
            policy, options = policy or algorithm.policy, {**algorithm.options, **(options or {})}
            batch_size = algorithm.batch_size or batch_size
            algorithm, driver = algorithm.recipe, algorithm.driver
        self.algorithm = algorithm
        self.policy = policy
        self.policies = dict(policies or {})
        self.driver = driver
        self.options = options or {}
        self.steps = steps
        self.batch_size = batch_size
        self.n_runners = n_runners
        self.isolation = isolation
        self.timeout = timeout
        self.unresponsive = unresponsive
        self.emitted_overrides_returned = emitted_overrides_returned
        self.max_attempts = max_attempts
        self.select = select
        self.gateway = dict(gateway or {})
        self.listen = parse_listen(listen, advertise)
        self.adapters = listed(adapters)
        self.headroom = headroom or {}
        self.headroom_tasks = headroom_tasks
        self.evaluate_every = evaluate_every
        self.failure = read_failure_table(failure)
        self.quorum = read_quorum(quorum)
        self.async_steps, self.dynamic_sampling = async_steps, dynamic_sampling
        folders = self.served.trained.values()  # raises for what cannot be served
        check_deterministic(self.quorum, async_steps, [self.options, *(folder.options for folder in folders)])
        self.seed = seed
        self.folder = Path(folder)
        self.run = run
        self.resume = resume
        self.store = store
        self.trackers = None if trackers is None else listed(trackers)
        self.plugins = plugins or load_plugins()
        self.name = name
        self.note = note
        self.tracer = tracer
        self.adapter = adapter
        self.initial_resources = dict(initial_resources or {})
        self.hooks = tuple(hooks)
        if (chosen := read_strategy(strategy)) is not None:
            self.isolation, self.n_runners = chosen.isolation, chosen.n_runners or n_runners
        check_tracer(tracer, self.isolation)

    # -------------------------------------------------------------------------------------------- doing
    def fit(self, agent: Any, train_dataset: Data = None, val_dataset: Data = None) -> dict[str, Any]:
        """Train ``agent``; returns the run's summary. Blocks, also a loop that runs already (a notebook's):
        ``await afit(…)`` does not.
        """
        return run_sync(lambda: self.afit(agent, train_dataset, val_dataset))

    def dev(
        self, agent: Any, train_dataset: Data = None, val_dataset: Data = None, *, tasks: int = 4
    ) -> dict[str, Any]:
        """A quick run that trains nothing: what the agent gets on at most ``tasks`` of each dataset."""
        short = copy(self)  # a shallow one: what was given is shared
        short.algorithm, short.steps = Baseline(tasks=tasks), 0
        return short.fit(agent, train_dataset, val_dataset)

    async def afit(self, agent: Any, train_dataset: Data = None, val_dataset: Data = None) -> dict[str, Any]:
        """Coroutine form of :meth:`fit`."""
        algorithm = self._algorithm()
        serve = self.policy is not None or not isinstance(algorithm, BoundAlgorithm)
        async with self.session(agent, train_dataset, val_dataset, serve_policy=serve) as context:
            began = time.perf_counter()
            result = await context.guard(algorithm.run(context))
            summary = {
                "run_id": context.run_id,
                "seed": self.seed,
                **result,
                "total_seconds": round(time.perf_counter() - began, 3),
                "accounts": await context.accounts(),
            }
            exported = None
            if context.driver is not None and self.steps:
                exported = await context.driver.export(context.folder / "policy")
                summary["policy"] = str(exported)
            summary["chain"] = await context.journal.end(summary, exported)
            await context.store.update_run(context.run_id, {"summary": summary})
            context.plugins.notify("agl_run_finished", summary=summary)
        return summary

    def _algorithm(self) -> TrainingLoop:
        """The algorithm object: given, registered under the name, or RL with the recipe."""
        named = isinstance(self.algorithm, str) and self.algorithm in {*self.plugins.recipes, "rl"}
        if not named and not isinstance(self.algorithm, Recipe):
            refuse_rl_settings(
                quorum=self.quorum, async_steps=self.async_steps, dynamic_sampling=self.dynamic_sampling
            )
        if not isinstance(self.algorithm, str | Recipe):
            own: TrainingLoop = as_algorithm(self.algorithm, self)
            return own
        if isinstance(self.algorithm, str) and not named:
            known: dict[str, Any] = {**self.plugins.recipes, **self.plugins.algorithms}
            made: TrainingLoop = as_algorithm(
                pick(known, "recipe or algorithm", self.algorithm).factory(), self
            )
            return made
        recipe, served = self.recipe, self.served
        if served.named and not served.trained:
            raise UsageError(f"policy: nothing is trained: {', '.join(served.names)} are frozen")
        spec = driver_spec(self.plugins, self.driver, served)
        check_supported_fields(recipe, self.driver, spec.supported_fields, spec.unsupported_fields)
        check_credit_fields(recipe, self.plugins)
        rl: TrainingLoop = self.plugins.algorithms["rl"].factory(
            recipe=recipe,
            steps=self.steps,
            batch_size=self.batch_size,
            evaluate_every=self.evaluate_every,
            headroom_tasks=self.headroom_tasks,
            failure=self.failure,
            quorum=self.quorum,
            async_steps=self.async_steps,
            dynamic_sampling=self.dynamic_sampling,
        )
        return rl

    @property
    def served(self) -> Policies:
        """What ``policy`` and ``policies`` amount to."""
        return read_policies(self.policy, self.policies)

    @property
    def recipe(self) -> Recipe:
        """The recipe that is trained with (the default one for algorithms that bring their own loop)."""
        if isinstance(self.algorithm, Recipe):
            return self.algorithm
        given = self.algorithm if isinstance(self.algorithm, str) else "grpo"
        name = "grpo" if given in self.plugins.algorithms else given
        return pick(self.plugins.recipes, "recipe", name).factory()

    # ------------------------------------------------------------------------------------------ opening
    @asynccontextmanager
    async def session(
        self, agent: Any, train: Data = (), val: Data = (), *, serve_policy: bool = True
    ) -> AsyncIterator[Context]:
        """All that a run needs, open: store, gateway, engine, runner. Closed in reverse, whatever happens."""
        train, val = read_dataset(train, "training tasks"), read_dataset(val, "held-out tasks")
        async with AsyncExitStack() as stack:
            run = open_run_folder(self.folder, self.name, self.seed, run=self.run, resume=self.resume)
            stack.callback(run.close)
            folder = run.folder
            plugins = self._plugins_with_trackers(folder, stack)
            store = await self._store(folder, stack)
            select = self.select
            if self.adapter is not None and isinstance(self.algorithm, str | Recipe):
                select = selection(self.adapter, self.select)
            served = self.served
            gateway = Gateway(
                store,
                Keys.from_env(),
                select=select,
                policies=served.routing,
                on_call=_call_recorded(plugins),
            )
            stack.push_async_callback(gateway.stop)
            place = self.listen
            await gateway.start(place.host, place.port, allow_remote=place.remote, advertise=place.advertise)
            stack.enter_context(capturing_for(self.tracer, instrumentors(self.plugins, self.adapters)))
            driver = await self._serve(served, gateway, stack) if serve_policy else None
            await serve_scripted(self.headroom, val, gateway, stack, served.names)
            context = Context(
                run_id=run.run_id,
                folder=folder,
                store=store,
                gateway=gateway,
                plugins=plugins,
                seed=self.seed,
                train=train,
                val=val,
                policy=served.model_name,
                named=served.names if served.named and serve_policy else (),
                driver=driver,
                headroom=self.headroom,
                config=rollout_config(
                    self.failure,
                    timeout=self.timeout,
                    unresponsive=self.unresponsive,
                    attempts=self.max_attempts,
                    emitted_overrides_returned=self.emitted_overrides_returned,
                ),
                say=say,
                initial=self.initial_resources,
                endpoint=serve_policy,
            )
            await record_run(context, self._run_record(context, agent), resumed=run.resumed)
            run.started = True
            if self._tracker_names():  # a probe that leaves nothing behind has no place to tell of
                stack.push(report_unfinished(folder))
            self._start_runner(context, agent, stack)
            yield context

    def _start_runner(self, context: Context, agent: Any, stack: AsyncExitStack) -> None:
        """Run the agent here, unless runners of their own do (``n_runners=0``)."""
        if not self.n_runners:
            return
        hooked = with_hooks(agent, self.hooks, self.tracer)
        runner = Runner(
            hooked,
            context.store,
            attempt_keys=context.gateway,
            plugins=context.plugins,
            run_id=context.run_id,
            policies=self.served.routing,
            concurrency=self.n_runners,
            timeout=self.timeout,
            isolation=self.isolation,
            adapters=self.adapters,
        )
        if self.hooks:
            hooked.runner = runner
        context.ended = runner.counts
        context.runner = background(runner, stack)

    def _plugins_with_trackers(self, folder: Path, stack: AsyncExitStack) -> Plugins:
        """The plugins with this run's trackers among them; a tracker may listen to hooks of its own too."""
        trackers = [pick(self.plugins.trackers, "tracker", n).factory(folder) for n in self._tracker_names()]
        tracker_hooks = TrackerHooks(trackers)
        stack.callback(tracker_hooks.close)
        return self.plugins.with_listeners([tracker_hooks, *trackers])

    async def _store(self, folder: Path, stack: AsyncExitStack) -> Store:
        """The store that was given, opened if it is a place, else a file in the run's folder."""
        if self.store is not None and not isinstance(self.store, str | Path):
            return self.store
        place = folder / "store.sqlite" if self.store is None else self.store
        store = open_store(place, plugins=self.plugins)
        stack.push_async_callback(store.close)
        return store

    async def _serve(self, served: Policies, gateway: Gateway, stack: AsyncExitStack) -> Any:
        if served.named and (clash := sorted({*self.initial_resources} & {*served.names})):
            raise UsageError(f"initial_resources: {clash[0]!r} is the name of a policy; choose another")
        if not served.names:
            raise UsageError(
                "no policy: give the folder of a model in Hugging Face layout, e.g. "
                "policy='examples/calc_x/policy'"
            )
        return await serve(
            served,
            gateway,
            stack,
            spec=driver_spec(self.plugins, self.driver, served),
            recipe=self.recipe,
            seed=self.seed,
            options=self.options,
            routes=self.gateway,
        )

    def _tracker_names(self) -> list[str]:
        if self.trackers is not None:
            return list(self.trackers)
        return [name for name, spec in self.plugins.trackers.items() if spec.default]

    def _run_record(self, context: Context, agent: Any) -> dict[str, Any]:
        """What there is to know of a run: what it is for a reader, and all that decides on its rows."""
        recipe = self.recipe
        return {
            "run_id": context.run_id,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "async_steps": self.async_steps,
            "dynamic_sampling": self.dynamic_sampling,
            "about": {
                "agent": f"{self.name} · {getattr(as_agent(agent), 'name', type(agent).__name__)}",
                "recipe": json.dumps({"name": recipe.name, **recipe.uses()}),
                "policy": self.served.summary(),
                "driver": self.driver,
                "gateway": context.gateway.url,
                "tasks": f"{len(context.train)} to train on, {len(context.val)} held out",
            },
            "recipe": recipe.model_dump(),
            "failure": {kind: action.model_dump() for kind, action in self.failure.items()},
            "data": {"train": data_digest(context.train), "val": data_digest(context.val)},
            **self.served.record(),
            "driver": self.driver,
            "note": self.note,
            "options": self.options,
            "select": getattr(self.select, "__qualname__", "a function")
            if callable(self.select)
            else self.select,
            "gateway": self.gateway,
            "quorum": self.quorum,
            "tries": context.config.model_dump(),
            "python": platform.python_version(),
            "versions": versions(("agl-core", "agl-local", "agl-autogen", "torch", "openai")),
        }


def _call_recorded(plugins: Plugins) -> Callable[[Call], None] | None:
    """The notification hook, if any plugin listens: the gateway's hot path then builds nothing for nobody."""
    if not plugins.has_listeners("agl_call_recorded"):
        return None
    return lambda call: plugins.notify("agl_call_recorded", call=call)
