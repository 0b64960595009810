"""Arguments of v0.1 to v0.3's ``Trainer`` that are no fields of a run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from agentlightning.compat.v0.stores.v03_store import plain_store
from agentlightning.types import UsageError

_WITHOUT_EFFECT = {
    "port": "the trainer opens no port for its runners; `agl store --port` serves a store for others",
    "daemon": "worker processes always end with the trainer",
}
_LIMITS = ("max_tasks", "max_rollouts")
_REFUSED = {
    "runner": "the trainer makes its runners; use agl.LitAgentRunner with agl.LightningStoreClient",
}


def take_former(given: dict[str, Any]) -> dict[str, Any]:
    """Return ``given`` without arguments of v0.3 that have no effect here, each of which is said once. Raise
    :class:`UsageError` for one that v0.3 gave an effect that is reached in another way.
    """
    kept = {**given, "store": plain_store(given["store"])} if "store" in given else dict(given)
    former = {*_WITHOUT_EFFECT, *_REFUSED} - ({"runner"} if _names_runner(kept.get("runner")) else set())
    for name in [one for one in kept if one in former]:
        if kept.pop(name) in (None, True):
            continue
        if name in _REFUSED:
            raise UsageError(f"Trainer({name}=…) of Agent Lightning 0.3 is not here: {_REFUSED[name]}")
        warnings.warn(
            f"Trainer({name}=…) has no effect: {_WITHOUT_EFFECT[name]}", FutureWarning, stacklevel=3
        )
    return kept


def take_limit(given: dict[str, Any]) -> int | None:
    """Remove ``max_tasks``, or ``max_rollouts``, from ``given`` and return it: for each worker, the number of
    tasks that it takes from another process's server, or from a :class:`.DevTaskLoader`.
    """
    found = [value for name in _LIMITS if (value := given.pop(name, None)) is not None]
    return int(found[-1]) if found else None


def take_adapter(given: dict[str, Any], adapter: Any) -> Any:
    """Remove ``triplet_exporter``, the name of ``adapter`` in 0.1, from ``given``; return the one that is
    given, as an object.
    """
    exporter = given.pop("triplet_exporter", None)
    chosen = adapter if adapter is not None else exporter
    if isinstance(chosen, Mapping) and "type" not in chosen:
        from agentlightning.compat.v0.converters import TracerTraceToTriplet

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
    from agentlightning.compat.v0.converters import TracerTraceToTriplet

    try:
        return TracerTraceToTriplet(agent_match=pattern)
    except UsageError as error:
        raise UsageError(str(error).replace("agent_match", "trained_agents")) from None


def _names_runner(given: Any) -> bool:
    """Return whether ``runner`` is the present field, which names a place; in v0.3 it was an object."""
    return isinstance(given, str | Mapping)
