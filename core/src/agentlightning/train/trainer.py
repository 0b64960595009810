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
from agentlightning.algorithms.schedule import added_settings
from agentlightning.algorithms.verl_config import VERL
from agentlightning.gateway.listen import parse_listen
from agentlightning.plugins.manager import Plugins, load as load_plugins
from agentlightning.runner.agent.hosted import hosted
from agentlightning.runner.event_loops.threads import run_sync
from agentlightning.specs import TrainerPart
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

    ``initial_resources``: what agents get beside the policies, by name. Plugins know further arguments (hook
    ``agl_trainer_arguments``), such as those of Agent Lightning 0.x (agl-v03).

    Its fields are attributes too: ``trainer.steps`` is ``trainer.config.training.steps``.
    """

    def __init__(
        self,
        algorithm: Any = "grpo",
        *,
        plugins: Plugins | None = None,
        initial_resources: Mapping[str, Resource | str | dict[str, Any]] | None = None,
        **fields: Unpack[RunFields],
    ) -> None:
        self.plugins = plugins or load_plugins()
        given: dict[str, Any] = {**fields}
        self._part: TrainerPart | None = self.plugins.first(
            "agl_trainer_arguments", trainer=self, given=given
        )
        if isinstance(algorithm, VERL):
            algorithm, given = algorithm.recipe, _of_verl(algorithm, given)
        config = from_fields({**given, "algorithm": algorithm})
        parse_listen(config.gateway.listen, config.gateway.advertise)  # refused before anything starts
        self.config = config
        self.initial_resources = dict(initial_resources or {})
        self._keeps_artifacts = True

    @classmethod
    def from_config(cls, config: RunConfig) -> Trainer:
        """Return the trainer of a description whose fields hold objects, not names of a file."""
        return cls(**fields_of(config))

    def __getattr__(self, name: str) -> Any:
        if name in ("config", "_part"):  # not made yet
            raise AttributeError(name)
        return getattr(self._part, name) if hasattr(self._part, name) else field_of(self.config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if is_field(name):
            name, value = "config", from_fields({name: value}, self.config)
        part = vars(self).get("_part")
        of_part = hasattr(part, name) and not hasattr(type(self), name)
        setattr(part, name, value) if of_part else super().__setattr__(name, value)

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
        self, agent: Any, train_dataset: Data = None, val_dataset: Data = None, **more: Any
    ) -> dict[str, Any]:
        """Train ``agent`` and return the run's summary. Blocks, also where an event loop already runs (in a
        notebook); ``await afit(…)`` does not. ``more``: what plugins know (:class:`.TrainerPart`).
        """
        given = {"train_dataset": train_dataset, "val_dataset": val_dataset, **more}
        if self._part is not None and (done := self._part.fit(self, agent, given)) is not None:
            return done
        return run_sync(lambda: self.afit(agent, **given))

    def dev(
        self, agent: Any, train_dataset: Data = None, val_dataset: Data = None, *, tasks: int = 4
    ) -> dict[str, Any]:
        """Run the agent on at most ``tasks`` tasks of each dataset, without training; return the rewards."""
        short = copy(self)  # shallow: both share the objects that were given
        training = type(self.config.training)
        none = {
            name: training.model_fields[name].get_default(call_default_factory=True)
            for name in ("async_steps", *added_settings(self.config.training))
        }
        fields: dict[str, Any] = {"algorithm": Baseline(tasks=tasks), "steps": 0, "sets": {}, **none}
        short.config = from_fields(fields, self.config)
        return run_sync(lambda: short.afit(agent, train_dataset, val_dataset))

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
            hosted(agent, self.plugins, self),
            self.initial_resources,
            artifact_place() if self._keeps_artifacts else None,
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
