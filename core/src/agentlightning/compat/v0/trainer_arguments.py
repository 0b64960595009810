"""Arguments of v0.3's ``Trainer`` that are no fields of a run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from agentlightning.compat.v0.stores.v03_store import plain_store
from agentlightning.types import UsageError

_WITHOUT_EFFECT = {
    "port": "the trainer opens no port for its runners; `agl store --port` serves a store for others",
    "daemon": "worker processes always end with the trainer",
    "max_tasks": "give that many tasks, or training.steps",
}
_REFUSED = {
    "runner": "the trainer makes its runners; use agl.LitAgentRunner with agl.LightningStoreClient",
    "max_rollouts": "runners serve until the run ends; `agl runner --max-rollouts` stops earlier",
    "triplet_exporter": "give adapter=agl.TracerTraceToTriplet(…)",
}


def take_former(given: dict[str, Any]) -> dict[str, Any]:
    """Return ``given`` without arguments of v0.3 that have no effect here, each of which is said once. Raise
    :class:`UsageError` for one that v0.3 gave an effect that is reached in another way.
    """
    kept = {**given, "store": plain_store(given["store"])} if "store" in given else dict(given)
    former = {*_WITHOUT_EFFECT, *_REFUSED} - ({"runner"} if _names_runner(kept.get("runner")) else set())
    for name in [one for one in kept if one in former]:
        if kept.pop(name) is None:
            continue
        if name in _REFUSED:
            raise UsageError(f"Trainer({name}=…) of Agent Lightning 0.3 is not here: {_REFUSED[name]}")
        warnings.warn(
            f"Trainer({name}=…) has no effect: {_WITHOUT_EFFECT[name]}", FutureWarning, stacklevel=3
        )
    return kept


def _names_runner(given: Any) -> bool:
    """Return whether ``runner`` is the present field, which names a place; in v0.3 it was an object."""
    return isinstance(given, str | Mapping)
