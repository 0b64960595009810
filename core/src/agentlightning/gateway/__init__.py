"""The gateway between agents and engines: it admits, routes, samples and records every model call."""

from __future__ import annotations

from agentlightning.gateway.admission.attempts import AttemptInfo
from agentlightning.gateway.app import Gateway
from agentlightning.gateway.rewrite.sampling import SamplingPolicy
from agentlightning.gateway.upstream.client import Limits
from agentlightning.gateway.upstream.route import Upstream
from agentlightning.types.select import Select

__all__ = ["AttemptInfo", "Gateway", "Limits", "SamplingPolicy", "Select", "Upstream"]
