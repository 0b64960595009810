"""Converters, ``adapter=`` of v0.3: make triplets or messages of the spans of an attempt.

They take the spans that ``store.query_spans`` returns, and need no store themselves.
"""

from __future__ import annotations

from agentlightning.compat.v0.converters.base import Converter
from agentlightning.compat.v0.converters.messages import TraceToMessages
from agentlightning.compat.v0.converters.triplets import (
    LlmProxyTraceToTriplet,
    TracerTraceToTriplet,
    TripletExporter,
)

__all__ = [
    "Converter",
    "LlmProxyTraceToTriplet",
    "TraceToMessages",
    "TracerTraceToTriplet",
    "TripletExporter",
]
