"""Converters, ``adapter=`` of v0.3: make triplets or messages of the spans of an attempt.

They take the spans that ``store.query_spans`` returns, and need no store themselves.
"""

from __future__ import annotations

from agl_v03.converters.base import Converter
from agl_v03.converters.messages import TraceToMessages
from agl_v03.converters.triplets import (
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
