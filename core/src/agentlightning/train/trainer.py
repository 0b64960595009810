"""The trainer: a run's description and objects, and the calls that start it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.custom import Baseline, BoundAlgorithm
from agentlightning.algorithms.verl_config import VERL
from agentlightning.compat.v0.backend import run_backend, take_backend
from agentlightning.compat.v0.strategy import Strategy, check_tracer, read_strategy
from agentlightning.compat.v0.trainer_arguments import (
    adapter_for,
    component,
    listed_hooks,
    take_adapter,
    take_former,
    take_limit,
)
from agentlightning.gateway.listen import parse_listen
from agentlightning.plugins.manager import Plugins, load as load_plugins
from agentlightning.runner.event_loops.threads import run_sync
from agentlightning.store.places import artifact_place
from agentlightning.train.algorithm import algorithm_of, recipe_of
from agentlightning.train.description.fields import RunFields, field_of, fields_of, from_fields, is_field
from agentlightning.train.description.run_config import RunConfig
from agentlightning.train.policies import POLICY, Policies, fetch_pretrained
from agentlightning.train.session import Data, TrainingSession
from agentlightning.types import LLM, Recipe, Resource


class Trainer:
    """Trains an agent.

    ``algorithm``: a :class:`Recipe`, the name of one, :class:`VERL` (which brings recipe, driver and
    options), a function (:func:`agl.algo`), or an object with ``async run(context)``.

    ``fields``: the fields of :class:`~agentlightning.train.description.run_config.RunConfig` by name, as in a
    YAML file. ``policy``: folder of the model to start from, or the name of a pretrained one, which is
    fetched on first use (``agl policy list``); or several policies by name, each a folder, a
    :class:`PolicyFolder`, or an :class:`LLM`, which is never trained; ``policies``: agent → policy.
    ``driver``: the driver that runs the recipe; ``options``: the driver's own settings. ``concurrency``:
    rollouts at a time in this process, 0 for runners elsewhere (``agl runner``). ``output``: folder of the
    runs; each run has ``<output>/<run id>``. ``run``: the run's id; ``resume``: go on with this run, or with
    the latest run of this name and seed.

    Names of v0.3: ``tracer`` (:mod:`agentlightning.compat.v0.tracer`), ``adapter`` (a converter, for the
    algorithm), ``strategy`` (:mod:`agentlightning.compat.v0.strategy`), ``initial_resources``, ``hooks``,
    ``llm_proxy`` (:class:`~agentlightning.compat.v0.llm_proxy.LLMProxy`: its models are served by the run's
    gateway, for the algorithm), ``dev`` (:meth:`fit` does what :meth:`dev` does), ``max_tasks``
    (:func:`~agentlightning.compat.v0.trainer_arguments.take_limit`).

    Its fields are attributes too: ``trainer.steps`` is ``trainer.config.training.steps``.
    """

    def __init__(
        self,
        algorithm: Any = "grpo",
        *,
        plugins: Plugins | None = None,
        tracer: Any = None,
        adapter: Any = None,
        strategy: str | Mapping[str, Any] | Strategy | None = None,
        initial_resources: Mapping[str, Resource | str | dict[str, Any]] | None = None,
        hooks: Any = (),
        llm_proxy: Any = None,
        dev: bool = False,
        **fields: Unpack[RunFields],
    ) -> None:
        given = take_former({**fields})
        tracer, self.max_tasks, self.adapter = (
            component(tracer),
            take_limit(given),
            take_adapter(given, adapter),
        )
        if llm_proxy is not None and llm_proxy.port and not given.get("listen"):
            given["listen"] = f"{llm_proxy.host}:{llm_proxy.port}"
        if isinstance(algorithm, VERL):
            algorithm, given = algorithm.recipe, _of_verl(algorithm, given)
        config = from_fields({**given, "algorithm": algorithm})
        if (chosen := read_strategy(strategy)) is not None:
            n = config.agent.concurrency if chosen.n_runners is None else chosen.n_runners
            config = from_fields({"isolation": chosen.isolation, "concurrency": n}, config)
        parse_listen(config.gateway.listen, config.gateway.advertise)  # refused before anything starts
        check_tracer(tracer, config.agent.isolation)
        self.config = config
        self.plugins = plugins or load_plugins()
        self.tracer = tracer
        self.initial_resources = dict(initial_resources or {})
        self.hooks = listed_hooks(hooks)
        self.llm_proxy = llm_proxy
        self._dev = dev
        self._keeps_artifacts = True

    @classmethod
    def from_config(cls, config: RunConfig) -> Trainer:
        """Return the trainer of a description whose fields hold objects, not names of a file."""
        return cls(**fields_of(config))

    def __getattr__(self, name: str) -> Any:
        if name == "config":  # not made yet
            raise AttributeError(name)
        return field_of(self.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if is_field(name):
            name, value = "config", from_fields({name: value}, self.config)
        super().__setattr__(name, value)

    @property
    def served(self) -> Policies:
        """Return the policies that the run serves, and which agent talks to which."""
        return self.config.served

    @property
    def recipe(self) -> Recipe:
        """Return the recipe that is trained with; an algorithm with a loop of its own has the default one."""
        return recipe_of(self.config, self.plugins)

    # -------------------------------------------------------------------------------------------- doing
    def fit(
        self, agent: Any, train_dataset: Data = None, val_dataset: Data = None, **former: Any
    ) -> dict[str, Any]:
        """Train ``agent`` and return the run's summary. Blocks, also where an event loop already runs (in a
        notebook); ``await afit(…)`` does not.

        In place of the tasks it takes what 0.1 called a backend, the URL of a server of tasks: then it runs
        the agent on those (:mod:`agentlightning.compat.v0.backend`), and somebody else trains.
        """
        data, backend = take_backend({"train_dataset": train_dataset, "val_dataset": val_dataset, **former})
        if backend is not None:
            return run_backend(self, agent, backend[self._dev])
        train_dataset, val_dataset = data
        if self._dev:
            return self.dev(agent, train_dataset, val_dataset)
        return run_sync(lambda: self.afit(agent, train_dataset, val_dataset))

    fit_v0 = fit  # a name of 0.2 and 0.3 for what also takes a URL

    def dev(
        self, agent: Any, train_dataset: Data = None, val_dataset: Data = None, *, tasks: int = 4
    ) -> dict[str, Any]:
        """Run the agent on at most ``tasks`` tasks of each dataset, without training; return the rewards."""
        short = copy(self)  # shallow: both share the objects that were given
        short._dev = False
        none = {
            "quorum": None,
            "async_steps": 0,
            "dynamic_sampling": 0,
            "curriculum": None,
            "keep_best": False,
        }
        fields: dict[str, Any] = {"algorithm": Baseline(tasks=tasks), "steps": 0, "sets": {}, **none}
        short.config = from_fields(fields, self.config)
        return short.fit(agent, train_dataset, val_dataset)

    async def afit(self, agent: Any, train_dataset: Data = None, val_dataset: Data = None) -> dict[str, Any]:
        """Train ``agent`` and return the run's summary, as a coroutine."""
        algorithm = algorithm_of(self.config, self.plugins, self)
        serve = self.config.backend.policy is not None or not isinstance(algorithm, BoundAlgorithm)
        async with self.session(agent, train_dataset, val_dataset, serve_policy=serve) as context:
            began = time.perf_counter()
            result = await context.guard(algorithm.run(context))
            summary = {
                "run_id": context.run_id,
                "seed": context.seed,
                **result,
                "total_seconds": round(time.perf_counter() - began, 3),
                "accounts": await context.accounts(),
                **context.spent(),
            }
            exported = None
            trained = getattr(algorithm, "trains_policy", True) and self.config.training.steps
            if context.driver is not None and trained:
                exported = await context.driver.export(context.folder / "policy")
                summary["policy"] = str(exported)
            summary["chain"] = await context.journal.end(summary, exported)
            await context.store.update_run(context.run_id, {"summary": summary, **context.spent()})
            context.plugins.notify("agl_run_finished", summary=summary)
        return summary

    def session(
        self, agent: Any, train: Data = (), val: Data = (), *, serve_policy: bool = True
    ) -> AbstractAsyncContextManager[Context]:
        """Open store, gateway, engine and runner of a run; close them in reverse, whatever happens."""
        opened = TrainingSession(
            _with_fetched(self.config, self.plugins),
            self.plugins,
            self.tracer,
            adapter_for(agent, self.adapter, self.config.agent.select),
            self.initial_resources,
            self.hooks,
            artifact_place() if self._keeps_artifacts else None,
            self,
        )
        return opened.open(agent, train, val, serve_policy=serve_policy)


def _with_fetched(config: RunConfig, plugins: Plugins) -> RunConfig:
    """Return ``config`` with folders in place of the names of pretrained policies, which are fetched."""
    policies = config.served
    found = {}
    for name, given in {**policies.trained, **policies.frozen}.items():
        if isinstance(given, LLM) or Path(given.path).is_dir():
            continue
        if (fetched := fetch_pretrained(given.path, plugins)) is not None:
            found[name] = replace(given, path=fetched)
    if not found:
        return config
    policy: Any = config.backend.policy
    return from_fields({"policy": {**policy, **found} if policies.named else found[POLICY]}, config)


def _of_verl(given: VERL, fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` with those of verl's tree. The tree's batch size and the fields' policy win."""
    return {
        **fields,
        "policy": fields.get("policy") or given.policy,
        "options": {**given.options, **(fields.get("options") or {})},
        "batch_size": given.batch_size or fields.get("batch_size"),
        "driver": given.driver,
    }
