"""Tracing without a store: the work of any agent as a tree of spans.

``with tracer.trace("my-agent", task): …`` records the block; ``tracer.last_trace()`` is the record of the
last one. The tracer classes are names of v0.3: capture needs none, so they only switch it on or off. Names
load lazily.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentlightning.compat.v0.tracer.recording import (
        Trace as Trace,
        last_trace as last_trace,
        trace as trace,
    )
    from agentlightning.compat.v0.tracer.tracers import (
        AgentOpsTracer as AgentOpsTracer,
        DummyTracer as DummyTracer,
        OtelTracer as OtelTracer,
        Tracer as Tracer,
    )

_HOMES = {
    "AgentOpsTracer": "tracers",
    "DummyTracer": "tracers",
    "OtelTracer": "tracers",
    "Trace": "recording",
    "Tracer": "tracers",
    "last_trace": "recording",
    "trace": "recording",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
