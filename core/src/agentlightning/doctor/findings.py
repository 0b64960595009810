"""What an examination works with: the case it was given, and what the checks found so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.doctor.memory import Usage
from agentlightning.plugins import Plugins
from agentlightning.trainer import Trainer
from agentlightning.types import Batch, Record


@dataclass(frozen=True, slots=True)
class Size:
    """How much is probed."""

    tasks: int = 8
    """Tasks of the reward probe."""
    samples: int | None = None
    """Rollouts of each; ``None``: the recipe's group size."""
    quick: bool = False
    """Estimate the update instead of making one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run as it is configured."""

    trainer: Trainer
    agent: Any
    train: Sequence[Any] = ()
    val: Sequence[Any] = ()


@dataclass(slots=True)
class Spent:
    """What the reward probe took."""

    rollouts: int
    seconds: float
    at_once: int
    """Rollouts that ran side by side."""
    bytes: int
    """Growth of the store."""


@dataclass(slots=True)
class Findings:
    """The blackboard of one examination: a check reads what earlier ones wrote."""

    load: Callable[[], Case] | None
    """Reads the configuration; ``None``: only the environment is looked at."""
    size: Size
    scratch: Path
    """A temporary folder for everything the probe writes."""
    stack: AsyncExitStack
    plugins: Plugins | None = None
    case: Case | None = None
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
    spent: Spent | None = None
    usage: list[Usage] = field(default_factory=list)
    """Memory in use, at moments of the examination."""
    suggested_group_size: int | None = None
    forecast: dict[str, Any] = field(default_factory=dict)

    def the_case(self) -> Case:
        """The configured run; only checks that need the configuration ask."""
        assert self.case is not None
        return self.case

    def the_context(self) -> Context:
        """The open session; only checks that need the engine ask."""
        assert self.context is not None
        return self.context

    @property
    def samples(self) -> int:
        """Rollouts of each probed task."""
        return self.size.samples or self.the_case().trainer.recipe.group_size
