"""The trainer: opens what a run needs, hands it to the algorithm, closes everything.

One process holds store, gateway and runner on one event loop; the driver's engine is a process of its own.
The
order of :meth:`Trainer._run` is the flow: store → gateway → driver's engine → runner → algorithm.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentlightning import capture
from agentlightning.agents import as_agent
from agentlightning.algorithms.context import Algorithm, Context
from agentlightning.algorithms.rl import RL, refuse_ignored
from agentlightning.gateway import Gateway, SamplingPolicy, Upstream
from agentlightning.keys import Keys
from agentlightning.plugins import Plugins, load as load_plugins, pick
from agentlightning.runner import Runner
from agentlightning.specs import Driver
from agentlightning.store import open_store
from agentlightning.trackers import Relay
from agentlightning.types import Recipe

POLICY = "policy"
"""Name under which agents ask the gateway for the trained policy."""


class Trainer:
    """Trains an agent.

    ``algorithm``: a :class:`Recipe`, the name of one, or an object with ``async run(context)``.
    ``policy``: folder of
    the model to start from. ``driver``: who runs the recipe; ``options`` are its own settings. ``folder``:
    where runs
    go; each gets ``<folder>/<run id>`` with its store, metrics, checkpoints and summary. ``headroom``:
    scripted
    policies (``oracle``, ``random``), each a factory ``tasks -> script`` for a :class:`ScriptedModelServer`.
    """

    def __init__(
        self,
        algorithm: Recipe | Algorithm | str = "grpo",
        *,
        policy: str | Path | None = None,
        driver: str = "local",
        options: dict[str, Any] | None = None,
        steps: int = 40,
        batch_size: int = 8,
        n_runners: int = 16,
        timeout: float | None = 60.0,
        select: str | list[str] | None = None,
        adapters: Sequence[str] = (),
        headroom: dict[str, Callable[..., Any]] | None = None,
        headroom_tasks: int = 100,
        evaluate_every: int = 0,
        failure: dict[str, float | None] | None = None,
        seed: int = 1,
        folder: str | Path = "runs",
        store: Any = None,
        trackers: Sequence[str] | None = None,
        plugins: Plugins | None = None,
        name: str = "agent",
        note: str | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.policy = policy
        self.driver = driver
        self.options = options or {}
        self.steps = steps
        self.batch_size = batch_size
        self.n_runners = n_runners
        self.timeout = timeout
        self.select = select
        self.adapters = tuple(adapters)
        self.headroom = headroom or {}
        self.headroom_tasks = headroom_tasks
        self.evaluate_every = evaluate_every
        self.failure = failure
        self.seed = seed
        self.folder = Path(folder)
        self.store = store
        self.trackers = trackers
        self.plugins = plugins or load_plugins()
        self.name = name
        self.note = note

    # -------------------------------------------------------------------------------------------- doing
    def fit(
        self, agent: Any, train_dataset: Sequence[Any], val_dataset: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """Train ``agent``; returns the run's summary. Blocks: use :meth:`afit` inside a running loop."""
        return asyncio.run(self.afit(agent, train_dataset, val_dataset))

    async def afit(
        self, agent: Any, train_dataset: Sequence[Any], val_dataset: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """Coroutine form of :meth:`fit`."""
        algorithm = self._algorithm()
        async with self.session(agent, train_dataset, val_dataset) as context:
            began = time.perf_counter()
            result = await context.guard(algorithm.run(context))
            summary = {
                "run_id": context.run_id,
                "seed": self.seed,
                **result,
                "total_seconds": round(time.perf_counter() - began, 3),
                "refused": (await context.store.counts()).get("refused", {}),
            }
            if context.driver is not None and self.steps:
                summary["policy"] = str(await context.driver.export(context.folder / "policy"))
            await context.store.update_run(context.run_id, {"summary": summary})
            context.plugins.moment("agl_run_finished", summary=summary)
        return summary

    def _algorithm(self) -> Algorithm:
        if not isinstance(self.algorithm, str | Recipe):
            return self.algorithm
        recipe = self.recipe
        spec = pick(self.plugins.drivers, "driver", self.driver)
        refuse_ignored(recipe, self.driver, spec.honours)
        return RL(
            recipe,
            steps=self.steps,
            batch_size=self.batch_size,
            evaluate_every=self.evaluate_every,
            headroom_tasks=self.headroom_tasks,
            failure=self.failure,
        )

    @property
    def recipe(self) -> Recipe:
        """The recipe that is trained with (the default one for algorithms that bring their own loop)."""
        if isinstance(self.algorithm, Recipe):
            return self.algorithm
        name = self.algorithm if isinstance(self.algorithm, str) else "grpo"
        return pick(self.plugins.recipes, "recipe", name).factory()

    # ------------------------------------------------------------------------------------------ opening
    @asynccontextmanager
    async def session(
        self, agent: Any, train: Sequence[Any] = (), val: Sequence[Any] = (), *, serve_policy: bool = True
    ) -> AsyncIterator[Context]:
        """Everything a run needs, open: store, gateway, engine, runner. Closed in reverse, whatever
        happens.
        """
        run_id = time.strftime("%Y%m%d-%H%M%S") + f"-{self.name}-s{self.seed}"
        folder = _fresh(self.folder / run_id)
        async with AsyncExitStack() as stack:
            self._track(folder, stack)
            store = self.store if self.store is not None else open_store(str(folder / "store.sqlite"))
            if self.store is None:
                stack.push_async_callback(store.close)
            gateway = Gateway(store, Keys.from_env(), select=self.select, on_call=self._on_call)
            stack.push_async_callback(gateway.stop)
            await gateway.start()
            for spec in self._instrument():
                stack.callback(spec.uninstrument)
            driver = await self._serve(gateway, stack) if serve_policy else None
            await self._serve_scripted(gateway, stack, val)
            runner = Runner(
                agent,
                store,
                gate=gateway,
                plugins=self.plugins,
                run_id=folder.name,
                concurrency=self.n_runners,
                timeout=self.timeout,
            )
            serving = _background(runner, stack)
            context = Context(
                run_id=folder.name,
                folder=folder,
                store=store,
                gateway=gateway,
                plugins=self.plugins,
                seed=self.seed,
                train=train,
                val=val,
                policy=POLICY,
                driver=driver,
                headroom=self.headroom,
                timeout=self.timeout,
                runner=serving,
                say=_say,
            )
            await context.publish()
            await self._announce(context, agent)
            yield context

    def _track(self, folder: Path, stack: AsyncExitStack) -> None:
        """Let the run's trackers hear its moments; a tracker may listen to hooks of its own too."""
        trackers = [pick(self.plugins.trackers, "tracker", n).factory(folder) for n in self._tracker_names()]
        for listener in (Relay(trackers), *trackers):
            self.plugins.manager.register(listener)
            stack.callback(self.plugins.manager.unregister, listener)

    async def _serve(self, gateway: Gateway, stack: AsyncExitStack) -> Driver:
        if self.policy is None:
            raise ValueError(
                "no policy: give the folder of a model in Hugging Face layout, e.g. "
                "policy='examples/calc_x/policy'"
            )
        recipe = self.recipe
        spec = pick(self.plugins.drivers, "driver", self.driver)
        driver = spec.factory(
            policy=Path(self.policy), name=POLICY, recipe=recipe, seed=self.seed, options=self.options
        )
        stack.push_async_callback(driver.close)
        llm = await driver.start()
        gateway.add_route(
            Upstream(
                policy=POLICY,
                url=llm.endpoint,
                model=llm.model,
                api_key=llm.api_key,
                trainable=True,
                version=lambda: driver.version,
            )
        )
        gateway.policy_sampling(
            POLICY, SamplingPolicy(temperature=recipe.temperature, top_p=recipe.top_p, top_k=recipe.top_k)
        )
        return driver

    async def _serve_scripted(self, gateway: Gateway, stack: AsyncExitStack, tasks: Sequence[Any]) -> None:
        """Scripted policies (oracle, random) answer through the same gateway as the real one."""
        if not self.headroom or not tasks:
            return
        from agentlightning.testing.scripted import ScriptedModelServer

        for name, script_for in self.headroom.items():
            server = ScriptedModelServer(script_for(tasks), model=name, ids="always")
            await server.start()
            stack.push_async_callback(server.stop)
            gateway.add_route(Upstream(policy=name, url=server.url, model=name, trainable=False))

    def _instrument(self) -> list[Any]:
        """Activate capture, the adapters asked for by name, and those whose framework is imported."""
        capture.install()
        active = []
        for name in self.adapters:
            pick(self.plugins.adapters, "adapter", name)
        for spec in self.plugins.adapters.values():
            if spec.name in self.adapters or spec.framework in sys.modules:
                instrumentor = spec.instrumentor()
                instrumentor.instrument()
                active.append(instrumentor)
        return active

    def _on_call(self, call: Any) -> None:
        if self.plugins.listens("agl_call_recorded"):
            self.plugins.moment("agl_call_recorded", call=call)

    def _tracker_names(self) -> list[str]:
        if self.trackers is not None:
            return list(self.trackers)
        return [name for name, spec in self.plugins.trackers.items() if spec.default]

    async def _announce(self, context: Context, agent: Any) -> None:
        run = {
            "run_id": context.run_id,
            "steps": self.steps,
            "seed": self.seed,
            "about": {
                "agent": f"{self.name} · {getattr(as_agent(agent), 'name', type(agent).__name__)}",
                "recipe": json.dumps({"name": self.recipe.name, **self.recipe.uses()}),
                "policy": str(self.policy),
                "driver": self.driver,
                "gateway": context.gateway.url,
                "tasks": f"{len(context.train)} to train on, {len(context.val)} held out",
            },
            "note": self.note,
            "options": self.options,
            "python": platform.python_version(),
            "versions": _versions(("agl-core", "agl-local", "agl-autogen", "torch", "openai")),
        }
        await context.store.add_run(context.run_id, run)
        context.plugins.moment("agl_run_started", run=run)


def _versions(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _fresh(folder: Path) -> Path:
    """Make ``folder``; if it exists already, the next free ``folder-2``, …"""
    candidate, n = folder, 1
    while True:
        try:
            candidate.mkdir(parents=True)
            return candidate.resolve()
        except FileExistsError:
            n += 1
            candidate = folder.with_name(f"{folder.name}-{n}")


def _background(runner: Runner, stack: AsyncExitStack) -> asyncio.Task[None]:
    """Serve the queue in the background until the session closes."""
    stop = asyncio.Event()
    task = asyncio.create_task(runner.serve(stop))

    async def finish() -> None:
        stop.set()
        await task

    stack.push_async_callback(finish)
    return task


def _say(line: str) -> None:
    print(line, file=sys.stderr)
