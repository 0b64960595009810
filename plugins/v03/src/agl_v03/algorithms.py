"""Users' own algorithms: a function or a class that works on the store of the run.

``@agl.algo async def search(*, store, train_dataset): …`` gets its arguments by name. Invariant: rollouts
that an algorithm enqueues belong to the run and use the trainer's settings for attempts, unless the algorithm
gives others.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentlightning.algorithms.context import Context
from agentlightning.capture.records import jsonable
from agentlightning.runner.threads import in_thread
from agentlightning.store.base import Store
from agentlightning.types import Resource, Rollout, UsageError


class AlgorithmStore:
    """The store of an algorithm: enqueued rollouts belong to the run and use the run's settings for
    attempts, unless they have their own (:meth:`.Store.add_run`).
    """

    def __init__(self, context: Context) -> None:
        self._store, self._run = context.store, context.run_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def enqueue_rollout(self, *args: Any, **fields: Any) -> Rollout:
        """Enqueue a rollout of the run, as :meth:`.Store.enqueue_rollout` does."""
        fields.setdefault("run_id", self._run)
        rollout: Rollout = await self._store.enqueue_rollout(*args, **fields)
        return rollout

    async def enqueue_many_rollouts(
        self, rollouts: Sequence[Rollout], *, request_id: str | None = None
    ) -> list[Rollout]:
        """Enqueue rollouts of the run, as :meth:`.Store.enqueue_many_rollouts` does."""
        mine = [r if r.run_id else msgspec.structs.replace(r, run_id=self._run) for r in rollouts]
        return await self._store.enqueue_many_rollouts(mine, request_id=request_id)


INPUTS = (
    "store", "train_dataset", "val_dataset", "context", "trainer", "llm_proxy", "gateway", "adapter",
    "tracer", "initial_resources",
)  # fmt: skip
"""The arguments that an algorithm may name. ``llm_proxy``: the trainer's, else the gateway's URL."""


class Algorithm:
    """An algorithm as a class: override :meth:`run`, plain or as a coroutine; the getters give access to
    the run.

    A plain ``run`` runs in its own thread. Its result goes into the run's summary.
    """

    trains_policy = True
    """Whether it may change the weights of the run's policy; a prompt search does not."""
    _given: dict[str, Any] | None = None

    def run(self, train_dataset: Sequence[Any] = (), val_dataset: Sequence[Any] = ()) -> Any:
        """Do the work."""
        raise UsageError(f"{type(self).__name__} does not define run(train_dataset, val_dataset)")

    def bind(self, trainer: Any) -> BoundAlgorithm:
        """Return the loop of a trainer's runs."""
        return BoundAlgorithm(self, trainer)

    def _get(self, name: str) -> Any:
        if self._given is None:
            raise UsageError(f"{type(self).__name__}: there is no {name} before Trainer.fit has begun")
        return self._given[name]

    def get_store(self) -> Store:
        """Return the run's store."""
        store: Store = self._get("store")
        return store

    def get_trainer(self) -> Any:
        """Return the trainer."""
        return self._get("trainer")

    def get_adapter(self) -> Any:
        """Return ``Trainer(adapter=…)``."""
        return self._get("adapter")

    def get_tracer(self) -> Any:
        """Return ``Trainer(tracer=…)``."""
        return self._get("tracer")

    def get_llm_proxy(self) -> Any:
        """Return ``Trainer(llm_proxy=…)``; without one, the base URL of the run's gateway."""
        return self._get("llm_proxy")

    def get_initial_resources(self) -> dict[str, Resource] | None:
        """Return ``Trainer(initial_resources=…)`` by name, with the policy's endpoint if the run serves one;
        ``None`` without them.
        """
        found: dict[str, Resource] | None = self._get("initial_resources")
        return found


class FunctionAlgorithm(Algorithm):
    """A function as an algorithm. It stays callable."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.run = function  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def algo(function: Callable[..., Any]) -> FunctionAlgorithm:
    """Make ``function``, plain or a coroutine function, an algorithm. It may name these arguments:
    ``store, train_dataset, val_dataset, context, trainer, gateway, adapter, tracer, initial_resources,
    llm_proxy`` (the trainer's, else the gateway's URL).
    """
    _arguments_of(function, dict.fromkeys(INPUTS))
    return FunctionAlgorithm(function)


class BoundAlgorithm:
    """An algorithm as the loop of one trainer's runs (:class:`.TrainingLoop`)."""

    needs_policy = False

    def __init__(self, algorithm: Algorithm, trainer: Any) -> None:
        self._algorithm, self._trainer = algorithm, trainer

    @property
    def trains_policy(self) -> bool:
        """Return whether the algorithm may change the policy's weights, which are exported then."""
        return self._algorithm.trains_policy

    async def run(self, context: Context) -> dict[str, Any]:
        """Run the algorithm on this run, with the arguments that it asks for."""
        algorithm, trainer = self._algorithm, self._trainer
        proxy = getattr(trainer, "llm_proxy", None)
        if proxy is not None:
            proxy.attach(context.gateway)
            if proxy.store is None:
                proxy.set_store(context.store)
        given = context.resources.ids.get(context.policy) if context.resources.initial else None
        stored = await context.store.get_resources_by_id(given) if given else None
        algorithm._given = inputs = {
            "store": AlgorithmStore(context),
            "train_dataset": context.train,
            "val_dataset": context.val,
            "context": context,
            "trainer": trainer,
            "llm_proxy": context.gateway.url if proxy is None else proxy,
            "gateway": context.gateway,
            "adapter": getattr(trainer, "adapter", None),
            "tracer": getattr(trainer, "tracer", None),
            "initial_resources": dict(stored.resources) if stored else None,
        }
        try:
            return as_summary(await _call(algorithm.run, **_arguments_of(algorithm.run, inputs)))
        finally:
            algorithm._given = None


def _arguments_of(function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for the parameters of ``function``."""
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name in known and parameter.kind is not parameter.POSITIONAL_ONLY:
            given[name] = known[name]
        elif parameter.default is parameter.empty:
            called = getattr(function, "__qualname__", function)
            raise UsageError(f"the algorithm {called} asks for {name!r}; there is {', '.join(sorted(known))}")
    return given


async def _call(function: Callable[..., Any], **given: Any) -> Any:
    """Await a coroutine function on this loop or run a plain one in a thread; return its result."""
    if inspect.iscoroutinefunction(function):
        return await function(**given)
    result = await in_thread(functools.partial(function, **given))
    return await result if inspect.isawaitable(result) else result


def as_summary(result: Any) -> dict[str, Any]:
    """Return the result for the run's summary: a dict as it is, anything else as ``result``."""
    if result is None:
        return {}
    found: dict[str, Any] = jsonable(result if isinstance(result, dict) else {"result": result})
    return found
