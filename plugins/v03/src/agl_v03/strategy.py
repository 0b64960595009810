"""Choose where a trainer's agents run, by the names of v0.3: ``shm`` and ``cs``.

``shm``: in the trainer's process, as tasks and threads. ``cs``: in worker processes, which the trainer kills
when an attempt's time is up; they reach the store through the trainer, and the model through the gateway.
Runners on other machines need no strategy: use ``n_runners=0`` here, and ``agl runner`` there.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

from agentlightning.runner.settings import Isolation
from agentlightning.types import Model, UsageError

_ISOLATION: dict[str, Isolation] = {"shm": "inline", "cs": "process"}
_OF_V03 = (
    "graceful_timeout", "main_process", "main_thread", "managed_store", "server_host", "server_port",
    "terminate_timeout",
)  # fmt: skip
_NO_SERVER = "workers reach the store through the trainer, which stops them by itself"


class Strategy(Model):
    """``n_runners``: rollouts at a time; ``None``: as many as the trainer says."""

    type: Literal["shm", "cs"] = "shm"
    n_runners: int | None = None

    @property
    def isolation(self) -> Isolation:
        """The isolation of the runner."""
        return _ISOLATION[self.type]


def SharedMemoryExecutionStrategy(**given: Any) -> Strategy:
    """Run agents in the trainer's process. ``n_runners``: rollouts at a time."""
    return _strategy("shm", given)


def ClientServerExecutionStrategy(**given: Any) -> Strategy:
    """Run agents in worker processes. ``n_runners``: rollouts at a time, and worker processes."""
    return _strategy("cs", given)


def check_tracer(tracer: Any, isolation: str = "inline") -> None:
    """Raise UsageError for an object that is no tracer, and for a tracer that would have no effect: worker
    processes always capture.
    """
    if tracer is not None and (isinstance(tracer, type) or not hasattr(tracer, "init_worker")):
        raise UsageError(
            f"tracer={tracer!r} is no tracer: give an object, agl.OtelTracer(), agl.AgentOpsTracer() or "
            "agl.DummyTracer(), or leave it out"
        )
    if isolation == "process" and not getattr(tracer, "captures", True):
        raise UsageError(
            f"tracer={tracer!r}: agents in worker processes are always captured; run them in this one"
        )


def read_strategy(given: str | Mapping[str, Any] | Strategy | None) -> Strategy | None:
    """Return the strategy given by name, as a mapping with ``type``, or as an object."""
    if given is None or isinstance(given, Strategy):
        return given
    fields: dict[str, Any] = {"type": given} if isinstance(given, str) else dict(given)
    if (kind := fields.pop("type", None)) not in _ISOLATION:
        raise UsageError(
            f"strategy is {given!r}; use 'shm' (agents in this process) or 'cs' (in worker processes), or a "
            "mapping of type and n_runners"
        )
    return _strategy(kind, fields)


def _strategy(kind: Literal["shm", "cs"], given: Mapping[str, Any]) -> Strategy:
    """Return the strategy with v0.3's settings ``given``."""
    if unknown := sorted(set(given) - {"n_runners", "role", *_OF_V03}):
        raise UsageError(f"strategy {kind!r} has no {', '.join(unknown)}; it has type and n_runners")
    if idle := sorted(set(given) & set(_OF_V03)):
        warnings.warn(
            f"strategy: {', '.join(idle)} have no effect: {_NO_SERVER}", FutureWarning, stacklevel=4
        )
    role, n_runners = given.get("role", "both"), given.get("n_runners")
    if role == "runner":
        raise UsageError(
            "strategy: this process cannot be a runner alone; start `agl runner`, which leases the rollouts "
            "of a store that `agl store` serves"
        )
    if role not in ("both", "algorithm"):
        raise UsageError(f"strategy: role is {role!r}; use 'both' or 'algorithm'")
    return Strategy(type=kind, n_runners=0 if role == "algorithm" else n_runners)
