"""Adapters of agent frameworks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """A framework adapter: instruments a framework natively so that its calls carry identity."""

    name: str
    framework: str
    """Import name of the framework; the adapter becomes active when it is imported."""
    instrumentor: Callable[[], Any]
    """Returns the OpenTelemetry ``BaseInstrumentor``, best a
    ``capture.adapter.AdapterInstrumentor``.
    """
    entry_methods: Callable[[type], Sequence[str]] | None = None
    """Methods of an agent class that ``@agl.agent`` wraps; ``()`` for classes of other frameworks."""
    requires: str = ""
    """Tested range, e.g. ``autogen-agentchat >= 0.7.5, < 0.8``."""
