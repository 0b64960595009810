"""The gateway between agents and engines: it admits, routes, samples and records every model call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning._lazy import lazy_names

if TYPE_CHECKING:
    from agentlightning.gateway.app import Gateway as Gateway
    from agentlightning.gateway.attempts import AttemptInfo as AttemptInfo
    from agentlightning.gateway.client import Limits as Limits
    from agentlightning.gateway.route import Upstream as Upstream
    from agentlightning.gateway.sampling import SamplingPolicy as SamplingPolicy

__getattr__ = lazy_names(
    __name__,
    {
        "AttemptInfo": "attempts",
        "Gateway": "app",
        "Limits": "client",
        "SamplingPolicy": "sampling",
        "Upstream": "route",
    },
)
