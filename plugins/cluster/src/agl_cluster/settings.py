"""Fields of a run's description."""

from __future__ import annotations

from pydantic import Field

from agentlightning.types.sections import Section


class MetricsSection(Section):
    """A port of 127.0.0.1 at which the trainer answers ``GET /metrics`` (``docs/operate.md``)."""

    port: int = Field(ge=0, le=65_535)
    """0: a free one, which the log names."""


class MetricsFields(Section):
    """The field ``metrics``."""

    metrics: MetricsSection | None = None
    """A port of 127.0.0.1 at which the trainer answers ``GET /metrics``: ``{port: 9100}``
    (``docs/operate.md``); none: no such port."""


class GatewayFields(Section):
    """The field of the section ``gateway``."""

    gateways: int = Field(default=0, ge=0, le=64)
    """Number of gateways that are processes of their own, on the port of ``listen`` and those after it; 0:
    one gateway in the run's process."""
