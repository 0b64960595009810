"""Choose where a trainer's agents run, by the names of v0.3: ``shm`` and ``cs``.

``shm``: in the trainer's process, as tasks and threads. ``cs``: in worker processes, which the trainer kills
when an attempt's time is up; they reach the store through the trainer, and the model through the gateway.
Runners on other machines need no strategy: use ``n_runners=0`` here, and ``agl runner`` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from agentlightning.runner.settings import Isolation
from agentlightning.types import Model, UsageError

_ISOLATION: dict[str, Isolation] = {"shm": "inline", "cs": "process"}


class Strategy(Model):
    """``n_runners``: rollouts at a time; ``None``: as many as the trainer says."""

    type: Literal["shm", "cs"] = "shm"
    n_runners: int | None = None

    @property
    def isolation(self) -> Isolation:
        """The isolation of the runner."""
        return _ISOLATION[self.type]


def SharedMemoryExecutionStrategy(*, n_runners: int | None = None) -> Strategy:
    """Run agents in the trainer's process."""
    return Strategy(type="shm", n_runners=n_runners)


def ClientServerExecutionStrategy(*, n_runners: int | None = None) -> Strategy:
    """Run agents in worker processes."""
    return Strategy(type="cs", n_runners=n_runners)


def check_tracer(tracer: Any, isolation: str) -> None:
    """Raise UsageError for an object that is no tracer, and for a tracer that would have no effect: worker
    processes always capture.
    """
    if tracer is not None and (isinstance(tracer, type) or not hasattr(tracer, "trace")):
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
    unknown = sorted(set(fields) - {"type", "n_runners"})
    if unknown or fields.get("type") not in _ISOLATION:
        raise UsageError(
            f"strategy is {given!r}; use 'shm' (agents in this process) or 'cs' (in worker processes), or a "
            "mapping of type and n_runners"
        )
    return Strategy(**fields)
