"""The gateway between agents and engines: it admits, routes, samples and records every model call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning._lazy import lazy_names

if TYPE_CHECKING:
    from agentlightning.gateway.admission.attempts import AttemptInfo as AttemptInfo
    from agentlightning.gateway.app import Gateway as Gateway
    from agentlightning.gateway.rewrite.sampling import SamplingPolicy as SamplingPolicy
    from agentlightning.gateway.upstream.client import Limits as Limits
    from agentlightning.gateway.upstream.route import Upstream as Upstream

__getattr__ = lazy_names(
    __name__,
    {
        "AttemptInfo": "admission.attempts",
        "Gateway": "app",
        "Limits": "upstream.client",
        "SamplingPolicy": "rewrite.sampling",
        "Upstream": "upstream.route",
    },
)
