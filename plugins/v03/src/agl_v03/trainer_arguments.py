"""Arguments of v0.1 to v0.3's ``Trainer`` that are no fields of a run, and what they do to its agent."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from agentlightning.types import Recipe, UsageError
from agl_v03.algorithms import algo
from agl_v03.backend import run_backend, take_backend
from agl_v03.converters import TracerTraceToTriplet
from agl_v03.converters.triplets import selection
from agl_v03.hooks import HookedAgent
from agl_v03.stores.v03_store import plain_store
from agl_v03.strategy import check_tracer, read_strategy

_WITHOUT_EFFECT = {
    "port": "the trainer opens no port for its runners; `agl store --port` serves a store for others",
    "daemon": "worker processes always end with the trainer",
}
_WORKERS = ("n_runners", "n_workers")
"""What Agent Lightning 0.x calls ``concurrency``."""
_LIMITS = ("max_tasks", "max_rollouts")
_REFUSED = {
    "runner": "the trainer makes its runners; use agl.LitAgentRunner with agl.LightningStoreClient",
}


class FormerTrainer:
    """Gives a trainer the attributes of then, and does what its ``fit`` was given then.

    ``tracer``: see :mod:`agl_v03.tracer`. ``adapter``: a converter, for the algorithm. ``strategy``: see
    :mod:`agl_v03.strategy`. ``llm_proxy``: an :class:`.LLMProxy`, whose models are served by the run's
    gateway, for the algorithm. ``dev``: ``fit`` does what ``dev`` does. ``max_tasks``: see
    :func:`take_limit`.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        """Take the arguments of then out of ``given``, and put the fields in that they mean."""
        drop_former(given)
        if inspect.isroutine(given["algorithm"]) or isinstance(given["algorithm"], partial):
            given["algorithm"] = algo(given["algorithm"])
        tracer, proxy = component(given.pop("tracer", None)), given.pop("llm_proxy", None)
        check_tracer(tracer)
        self.attributes = {
            "tracer": tracer,
            "max_tasks": take_limit(given),
            "adapter": take_adapter(given),
            "hooks": listed_hooks(given.pop("hooks", ())),
            "llm_proxy": proxy,
        }
        self.tries_out = bool(given.pop("dev", False))
        if proxy is not None and proxy.port and not given.get("listen"):
            given["listen"] = f"{proxy.host}:{proxy.port}"
        for name in [name for name in given if name in _WORKERS]:
            given["concurrency"] = given.pop(name)
        if (chosen := read_strategy(given.pop("strategy", None))) is not None:
            last: dict[str, Any] = {"isolation": chosen.isolation}
            if chosen.n_runners is not None:
                last["concurrency"] = chosen.n_runners
            for name, value in last.items():  # it outranks fields, and sections that hold them
                given.pop(name, None)
                given[name] = value

    def begin(self, trainer: Any) -> None:
        """Give the trainer the attributes of then; those that are no fields of today may be set."""
        for name, value in self.attributes.items():
            setattr(trainer, name, value)
        trainer.n_runners = trainer.n_workers = trainer.config.agent.concurrency
        trainer.fit_v0 = trainer.fit  # a name of 0.2 and 0.3 for what also takes a URL

    def fit(self, trainer: Any, agent: Any, given: dict[str, Any]) -> dict[str, Any] | None:
        """Run the agent on the tasks of a server, if one is given in place of a dataset, or try it out."""
        read_workers(trainer)
        data, backend = take_backend(given)
        if backend is not None:
            return run_backend(trainer, agent, backend[self.tries_out])
        given.clear()
        given.update(zip(("train_dataset", "val_dataset"), data, strict=True))
        if not self.tries_out:
            return None
        summary: dict[str, Any] = trainer.dev(agent, *data)
        return summary


def agent_of(trainer: Any, agent: Any) -> HookedAgent:
    """Return the agent with the trainer's hooks and tracer, and the calls that its adapter selects."""
    read_workers(trainer)
    config = trainer.config
    check_tracer(trainer.tracer, config.agent.isolation)
    made = HookedAgent(agent, trainer.hooks, trainer.tracer, trainer)
    adapter = adapter_for(agent, trainer.adapter, config.agent.select)
    if adapter is not None and isinstance(config.training.algorithm, str | Recipe):
        made.select = selection(adapter, config.agent.select)
    return made


def read_workers(trainer: Any) -> None:
    """Make what ``trainer.n_workers`` or ``trainer.n_runners`` was set to the run's ``concurrency``."""
    agent = trainer.config.agent
    for workers in {trainer.n_runners, trainer.n_workers} - {agent.concurrency}:
        agent = agent.model_copy(update={"concurrency": workers})
        trainer.config = trainer.config.model_copy(update={"agent": agent})
        trainer.n_runners = trainer.n_workers = workers


def drop_former(given: dict[str, Any]) -> None:
    """Remove arguments of v0.3 that have no effect here from ``given``, and say so of each once. Raise
    :class:`UsageError` for one that v0.3 gave an effect that is reached in another way.
    """
    if "store" in given:
        given["store"] = plain_store(given["store"])
    former = {*_WITHOUT_EFFECT, *_REFUSED} - ({"runner"} if _names_runner(given.get("runner")) else set())
    for name in [one for one in given if one in former]:
        if given.pop(name) in (None, True):
            continue
        if name in _REFUSED:
            raise UsageError(f"Trainer({name}=…) of Agent Lightning 0.3 is not here: {_REFUSED[name]}")
        warnings.warn(
            f"Trainer({name}=…) has no effect: {_WITHOUT_EFFECT[name]}", FutureWarning, stacklevel=7
        )


def take_limit(given: dict[str, Any]) -> int | None:
    """Remove ``max_tasks``, or ``max_rollouts``, from ``given`` and return it: for each worker, the number of
    tasks that it takes from another process's server, or from a :class:`.DevTaskLoader`.
    """
    found = [value for name in _LIMITS if (value := given.pop(name, None)) is not None]
    return int(found[-1]) if found else None


def take_adapter(given: dict[str, Any]) -> Any:
    """Remove ``adapter``, and ``triplet_exporter``, its name in 0.1, from ``given``; return the one that is
    given, as an object.
    """
    adapter, exporter = given.pop("adapter", None), given.pop("triplet_exporter", None)
    chosen = adapter if adapter is not None else exporter
    if isinstance(chosen, Mapping) and "type" not in chosen:
        return TracerTraceToTriplet(**chosen)
    return component(chosen)


def component(given: Any) -> Any:
    """Return an object that is given as itself, as ``"module.Class"``, or as a mapping of its ``type`` and
    its arguments.
    """
    if isinstance(given, str) and "." in given:
        given = {"type": given}
    if not isinstance(given, Mapping):
        return given
    arguments = dict(given)
    if "." not in (place := str(arguments.pop("type", ""))):
        raise UsageError(f"{given!r} has no type: give an object, or the class as 'module.Class'")
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)(**arguments)


def listed_hooks(given: Any) -> tuple[Any, ...]:
    """Return the hooks, of which one may be given without a list."""
    return tuple(given) if isinstance(given, Sequence) else (given,)


def adapter_for(agent: Any, adapter: Any, select: Any) -> Any:
    """Return the trainer's adapter; without it and without ``select``, one for the agent's
    ``trained_agents``.
    """
    pattern = getattr(agent, "trained_agents", None)
    if pattern is None or adapter is not None or select is not None:
        return adapter
    try:
        return TracerTraceToTriplet(agent_match=pattern)
    except UsageError as error:
        raise UsageError(str(error).replace("agent_match", "trained_agents")) from None


def _names_runner(given: Any) -> bool:
    """Return whether ``runner`` is the present field, which names a place; in v0.3 it was an object."""
    return isinstance(given, str | Mapping)
