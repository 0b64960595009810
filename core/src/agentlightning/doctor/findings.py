"""What an examination works with: the run it was given, and what the checks found so far."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.doctor.memory import MemoryUsage
from agentlightning.plugins.manager import Plugins
from agentlightning.train.configured import ConfiguredRun
from agentlightning.types import Batch, Record


@dataclass(frozen=True, slots=True)
class ProbeSize:
    """How much is probed."""

    tasks: int = 8
    """Tasks of the reward probe."""
    samples: int | None = None
    """Rollouts of each; ``None``: the recipe's group size."""
    quick: bool = False
    """Estimate the update instead of making one."""


@dataclass(slots=True)
class ProbeCost:
    """What the reward probe took."""

    rollouts: int
    seconds: float
    concurrency: int
    """Rollouts that ran side by side."""
    bytes: int
    """Growth of the store."""


@dataclass(slots=True)
class Findings:
    """The blackboard of one examination: a check reads what earlier ones wrote."""

    load: Callable[[], ConfiguredRun] | None
    """Reads the configuration; ``None``: only the environment is looked at."""
    size: ProbeSize
    scratch: Path
    """A temporary folder for everything the probe writes."""
    stack: AsyncExitStack
    plugins: Plugins | None = None
    configured: ConfiguredRun | None = None
    context: Context | None = None
    start_seconds: float = 0.0
    """Until the engine served."""
    probe: list[Record] = field(default_factory=list)
    """Records of the first rollouts of the user's agent."""
    records: list[Record] = field(default_factory=list)
    """Records of the reward probe."""
    oracle: list[Record] = field(default_factory=list)
    batch: Batch | None = None
    """What credit makes of ``records``."""
    spent: ProbeCost | None = None
    usage: list[MemoryUsage] = field(default_factory=list)
    """Memory in use, at moments of the examination."""
    suggested_group_size: int | None = None
    forecast: dict[str, Any] = field(default_factory=dict)

    def require_configured(self) -> ConfiguredRun:
        """The configured run; only checks that need the configuration ask."""
        assert self.configured is not None
        return self.configured

    def require_context(self) -> Context:
        """The open session; only checks that need the engine ask."""
        assert self.context is not None
        return self.context

    @property
    def samples(self) -> int:
        """Rollouts of each probed task."""
        return self.size.samples or self.require_configured().trainer.recipe.group_size
