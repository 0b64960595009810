"""The gateway between agents and engines: who asks, where it goes, how it is sampled, what is recorded."""

from __future__ import annotations

from agentlightning.gateway.admission.attempts import AttemptInfo
from agentlightning.gateway.app import Gateway
from agentlightning.gateway.rewrite.sampling import SamplingPolicy
from agentlightning.gateway.upstream.client import Limits
from agentlightning.gateway.upstream.route import Upstream
from agentlightning.types.select import Select

__all__ = ["AttemptInfo", "Gateway", "Limits", "SamplingPolicy", "Select", "Upstream"]
