"""Tracers, for ``Trainer(tracer=…)`` and ``LitAgentRunner(tracer=…)``: they only switch capture on or off.

Capture listens to the process's OpenTelemetry provider, whoever makes it, and to the openai SDK; it takes
nothing from a user's own tracing and adds nothing to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from agentlightning.compat.v0.tracer.recording import Trace, last_trace, trace

_LOG = logging.getLogger(__name__)


class Tracer:
    """The base of all tracers. ``captures``: whether agents are captured in their process."""

    captures = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @contextmanager
    def trace(self, name: str = "agent", input: Any = None) -> Iterator[Trace]:
        """As :func:`agentlightning.compat.v0.tracer.trace`."""
        with trace(name, input) as record:
            yield record

    def last_trace(self) -> Trace:
        """As :func:`agentlightning.compat.v0.tracer.last_trace`."""
        return last_trace()


class OtelTracer(Tracer):
    """OpenTelemetry's spans and the openai SDK's calls: the default."""


class AgentOpsTracer(OtelTracer):
    """The same beside AgentOps, whose spans are OpenTelemetry's: they are recorded where the user has started
    AgentOps. A running client is left alone, and none is started.
    """

    def __init__(self) -> None:
        if find_spec("agentops") is None:
            _LOG.info("AgentOps is not installed: AgentOpsTracer captures what OtelTracer does")


class DummyTracer(Tracer):
    """Capture off in the agent's process: the gateway and the emitters still record."""

    captures = False

    @contextmanager
    def trace(self, name: str = "agent", input: Any = None) -> Iterator[Trace]:
        """Records nothing."""
        yield Trace(name, input)
