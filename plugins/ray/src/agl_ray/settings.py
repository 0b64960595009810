"""The options of ``runner: {kind: ray, …}``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from agentlightning.types.sections import Section


class RayOptions(Section):
    """Which cluster, and what its actors are."""

    address: str = "auto"
    """The cluster: ``auto`` (the one of this machine, or of ``RAY_ADDRESS``), ``host:port``, or ``local``."""
    workers: int | None = Field(default=None, ge=1)
    """Actors; none: as many as the cluster's CPUs hold."""
    cpus: float = Field(default=1.0, gt=0)
    """CPUs that an actor reserves."""
    memory_mb: int | None = Field(default=None, ge=1)
    """Megabytes that an actor reserves."""
    concurrency: int = Field(default=1, ge=1)
    """Rollouts at a time in an actor."""
    isolation: Literal["inline", "process"] | None = None
    """Where an actor runs the agent; none: as ``agent.isolation`` says."""
    resources: dict[str, float] = {}
    """Custom resources of Ray that an actor reserves."""
    runtime_env: dict[str, Any] | None = None
    """Ray's ``runtime_env`` of the actors: packages, working directory, environment."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Seconds that running rollouts have to end when the run ends."""
