"""The trainer: a run's configuration and objects, its algorithm, and the calls that start it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from copy import copy
from typing import TYPE_CHECKING, Any

from agentlightning.algorithms.context import Context, TrainingLoop
from agentlightning.algorithms.evaluations import Baseline
from agentlightning.algorithms.schedule import added_settings, check_ends_early, schedule_of
from agentlightning.credit.checks import (
    check_credit_fields,
    check_supported_fields,
    without_unsupported_default,
)
from agentlightning.gateway.settings import parse_listen
from agentlightning.plugins.manager import Plugins, load as load_plugins, pick
from agentlightning.plugins.suite import not_installed
from agentlightning.runner.agent import hosted
from agentlightning.runner.threads import run_sync
from agentlightning.specs import TrainerPart
from agentlightning.train.config import RunConfig, fields as run_fields, from_fields
from agentlightning.train.policies import with_pretrained
from agentlightning.train.serving import driver_spec
from agentlightning.train.session import Data, TrainingSession, finish
from agentlightning.types import Recipe, Resource, UsageError
from agentlightning.types.base import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from agentlightning.train.keywords import RunFields  # written by `make schema`


class Trainer:
    """Trains an agent.

    ``algorithm``: a :class:`Recipe`, the name of one, verl's own configuration (``agl.VERL``, of agl-verl),
    an object with ``async run(context)`` (:class:`.TrainingLoop`), or a function (``agl.algo``, of agl-v03).

    ``fields``: the fields of :class:`~agentlightning.train.config.RunConfig` by name, as in a YAML file.
    ``policy``: folder of the model to start from, or the name of a pretrained one, which is fetched on first
    use (``agl policy list``); or several policies by name, each a folder, a :class:`PolicyFolder`, or an
    :class:`LLM`, which is never trained; ``policies``: agent → policy. ``driver``: the driver that runs the
    recipe; ``options``: the driver's own settings. ``concurrency``: rollouts at a time in this process, 0 for
    runners elsewhere (``agl runner``). ``output``: folder of the runs; each run has ``<output>/<run id>``.
    ``run``: the run's id; ``resume``: go on with this run, or with the latest run of this name and seed.

    ``initial_resources``: what agents get beside the policies, by name. Plugins know further arguments (hook
    ``agl_trainer_arguments``), such as those of Agent Lightning 0.x (agl-v03).
    """

    config: RunConfig
    """The run's configuration, checked: ``trainer.config.training.steps``. It does not change; another one
    may be set (:func:`~agentlightning.train.config.from_fields`).
    """
    plugins: Plugins
    initial_resources: dict[str, Any]

    def __init__(
        self,
        algorithm: Any = "grpo",
        *,
        plugins: Plugins | None = None,
        initial_resources: Mapping[str, Resource | str | dict[str, Any]] | None = None,
        **fields: Unpack[RunFields],
    ) -> None:
        self._set(None, {**fields, "algorithm": algorithm}, plugins, initial_resources)

    @classmethod
    def from_config(cls, config: RunConfig) -> Trainer:
        """Return the trainer of a configuration whose fields hold objects, not names of a file."""
        made = cls.__new__(cls)
        made._set(config, {"algorithm": config.training.algorithm}, None, None)
        return made

    def _set(
        self,
        config: RunConfig | None,
        given: dict[str, Any],
        plugins: Plugins | None,
        resources: Mapping[str, Any] | None,
    ) -> None:
        self.plugins = plugins or load_plugins()
        parts = [*self.plugins.answers("agl_trainer_arguments", given=given)]
        self._part: TrainerPart | None = parts[0] if parts else None
        self.config = from_fields(given, plugins=plugins) if config is None else config
        gateway = self.config.gateway
        parse_listen(gateway.listen, gateway.advertise)  # refused before anything starts
        self.initial_resources = dict(resources or {})
        self._has_services = True
        if self._part is not None:
            self._part.begin(self)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a field, which would change nothing here."""
        if name in run_fields(self.__dict__.get("plugins")).section_of:
            raise AttributeError(
                f"Trainer has no attribute {name!r}: its fields stand in Trainer.config; give it "
                f"{name}=…, or set config to from_fields({{{name!r}: …}}, trainer.config)"
            )
        super().__setattr__(name, value)

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
        serve = self.config.backend.policy is not None or getattr(algorithm, "needs_policy", True)
        async with self.session(agent, train_dataset, val_dataset, serve_policy=serve) as context:
            began = time.perf_counter()
            result = await context.guard(algorithm.run(context))
            seconds, exported = time.perf_counter() - began, None
            trained = getattr(algorithm, "trains_policy", True) and self.config.training.steps
            if context.driver is not None and trained:
                exported = await context.driver.export(context.folder / "policy")
            return await finish(context, result, seconds, exported)

    def session(
        self, agent: Any, train: Data = (), val: Data = (), *, serve_policy: bool = True
    ) -> AbstractAsyncContextManager[Context]:
        """Open store, gateway, engine and runner of a run; close them in reverse, whatever happens."""
        runs = hosted(agent, self.plugins, self)  # a plugin may set the configuration for it
        policies = with_pretrained(self.config.served, self.plugins)
        opened = TrainingSession(
            self.config if policies is self.config.served else self.config.serving(policies),
            self.recipe,
            self.plugins,
            runs,
            self.initial_resources,
            self._has_services,
        )
        return opened.open(agent, train, val, serve_policy=serve_policy)


def recipe_of(config: RunConfig, plugins: Plugins) -> Recipe:
    """Return the recipe that is trained with; an algorithm with a loop of its own has the default one."""
    recipe, driver = _recipe_of(config, plugins), plugins.drivers.get(config.backend.driver)
    return recipe if driver is None else without_unsupported_default(recipe, driver.supported_fields)


def _recipe_of(config: RunConfig, plugins: Plugins) -> Recipe:
    given = config.training.algorithm
    if isinstance(given, Recipe):
        return given
    own = plugins.algorithms.get(given) if isinstance(given, str) else None
    name = given if isinstance(given, str) and own is None else "grpo"
    try:
        if own is not None and own.recipe is not None:
            return own.recipe(**config.training.recipe)
        return pick(plugins.recipes, "recipe", name).factory(**config.training.recipe)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"training.recipe: {error}") from None


def algorithm_of(config: RunConfig, plugins: Plugins, trainer: Any) -> TrainingLoop:
    """Return the object whose ``run(context)`` is the run. A user's algorithm may ask for ``trainer``."""
    training, algorithm = config.training, config.training.algorithm
    named = isinstance(algorithm, str) and algorithm in {*plugins.recipes, "rl"}
    if named or isinstance(algorithm, Recipe):
        if training.settings:
            raise ConfigError("training.settings: a recipe has none; its fields stand in training.recipe")
        return _rl(config, plugins)
    own = plugins.algorithms.get(algorithm) if isinstance(algorithm, str) else None
    if own is not None and own.recipe is not None:
        return _rl(config, plugins, own.name)
    by = ["async_steps"] if training.async_steps else schedule_of(plugins, None, training).chooses_by
    if by:
        raise UsageError(
            f"training.{by[0]}: only training with a recipe knows it; an algorithm of your own queues its "
            "rollouts itself: drop it"
        )
    if config.evaluation.sets:
        raise UsageError(
            "evaluation.sets: only training with a recipe evaluates on them; an algorithm of your own makes "
            "its evaluations itself: drop them, and score its policy with `agl eval --on`"
        )
    if isinstance(algorithm, str):
        known: dict[str, Any] = {**plugins.recipes, **plugins.algorithms}
        spec = pick(known, "recipe or algorithm", algorithm)
        try:
            algorithm = spec.factory(**training.settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"training.settings: {error}") from None
    elif training.settings:
        raise ConfigError(
            "training.settings: they are for an algorithm by name; give the object its settings itself"
        )
    made: Any = algorithm() if isinstance(algorithm, type) else algorithm
    made = made.bind(trainer) if hasattr(made, "bind") else made
    if not callable(getattr(made, "run", None)):
        said = not_installed("name", "algo") if callable(made) and "algo" not in plugins.names else None
        raise UsageError(
            f"algorithm={algorithm!r} is no algorithm: give a recipe (agl.GRPO()) or its name ('grpo'), "
            "agl.VERL(config), an agl.Algorithm, a function of @agl.algo, or an object with run(context)"
            + (f"; a function: {said}" if said else "")
        )
    loop: TrainingLoop = made
    return loop


def _rl(config: RunConfig, plugins: Plugins, name: str = "rl") -> TrainingLoop:
    recipe, policies = recipe_of(config, plugins), config.served
    if policies.named and not policies.trained:
        raise UsageError(f"policy: nothing is trained: {', '.join(policies.names)} are frozen")
    spec = driver_spec(plugins, config.backend.driver, policies)
    check_supported_fields(recipe, spec.name, spec.supported_fields, spec.unsupported_fields)
    schedule = schedule_of(plugins, recipe, config.training)
    check_ends_early(schedule, spec.name, spec.ends_early)
    check_credit_fields(recipe, **plugins.credit_functions)
    made: TrainingLoop = plugins.algorithms[name].factory(recipe=recipe, training=config.training)
    return made
