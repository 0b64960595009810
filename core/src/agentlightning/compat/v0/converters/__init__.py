"""Converters, ``adapter=`` of v0.3: the spans of an attempt as triplets or messages.

They read the spans of ``store.query_spans`` and need no store themselves.
"""

from __future__ import annotations

from agentlightning.compat.v0.converters.base import Converter
from agentlightning.compat.v0.converters.messages import TraceToMessages
from agentlightning.compat.v0.converters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet

__all__ = ["Converter", "LlmProxyTraceToTriplet", "TraceToMessages", "TracerTraceToTriplet"]
