"""The gateway between agents and engines: who asks, where it goes, how it is sampled, what is recorded."""

from __future__ import annotations

from agentlightning.gateway.app import Gateway
from agentlightning.gateway.attempts import AttemptInfo
from agentlightning.gateway.forward import Limits
from agentlightning.gateway.route import Upstream
from agentlightning.gateway.sampling import SamplingPolicy
from agentlightning.types.select import Select

__all__ = ["AttemptInfo", "Gateway", "Limits", "SamplingPolicy", "Select", "Upstream"]
