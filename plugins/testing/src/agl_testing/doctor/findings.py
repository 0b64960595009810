"""The state of an examination: its run, and the findings so far."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.plugins.manager import Plugins
from agentlightning.train.configured import ConfiguredRun
from agentlightning.types import Batch, Record
from agl_testing.doctor.memory import MemoryUsage


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """Size of the probe."""

    tasks: int = 8
    """Tasks of the reward probe."""
    samples: int | None = None
    """Rollouts per task; ``None``: the recipe's group size."""
    quick: bool = False
    """Estimate the update instead of measuring it."""


@dataclass(slots=True)
class ProbeCost:
    """Cost of the reward probe."""

    rollouts: int
    seconds: float
    concurrency: int
    """Rollouts that ran at the same time."""
    bytes: int
    """Growth of the store."""


@dataclass(slots=True)
class Findings:
    """Findings shared by the checks of one examination: each check reads those of earlier ones."""

    load: Callable[[], ConfiguredRun] | None
    """Reads the configuration; ``None``: only the machine is checked."""
    size: ProbeSize
    scratch: Path
    """Temporary folder for all writes of the probe."""
    stack: AsyncExitStack
    plugins: Plugins | None = None
    configured: ConfiguredRun | None = None
    context: Context | None = None
    start_seconds: float = 0.0
    """Seconds until the engine served."""
    probe: list[Record] = field(default_factory=list)
    """Records of the first rollouts of the user's agent."""
    records: list[Record] = field(default_factory=list)
    """Records of the reward probe."""
    oracle: list[Record] = field(default_factory=list)
    batch: Batch | None = None
    """Credit of ``records``."""
    spent: ProbeCost | None = None
    usage: list[MemoryUsage] = field(default_factory=list)
    """Memory samples taken during the examination."""
    suggested_group_size: int | None = None
    forecast: dict[str, Any] = field(default_factory=dict)

    def require_configured(self) -> ConfiguredRun:
        """Return the configured run; only checks that need the configuration call this."""
        assert self.configured is not None
        return self.configured

    def require_context(self) -> Context:
        """Return the open session; only checks that need the engine call this."""
        assert self.context is not None
        return self.context

    @property
    def samples(self) -> int:
        """Rollouts per task of the probe."""
        return self.size.samples or self.require_configured().trainer.recipe.group_size
