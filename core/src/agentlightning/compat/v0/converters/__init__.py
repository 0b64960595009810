"""Converters, ``adapter=`` of the seed project: from the spans of an attempt to triplets or messages.

They read what ``store.query_spans`` gives and need no store themselves.
"""

from __future__ import annotations

from agentlightning.compat.v0.converters.base import Converter
from agentlightning.compat.v0.converters.messages import TraceToMessages
from agentlightning.compat.v0.converters.triplets import LlmProxyTraceToTriplet, TracerTraceToTriplet

__all__ = ["Converter", "LlmProxyTraceToTriplet", "TraceToMessages", "TracerTraceToTriplet"]
