"""The section of a run's description that the runner takes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentlightning.gateway.settings import CallSection
from agentlightning.types import RolloutConfig
from agentlightning.types.failure import FailureTable
from agentlightning.types.sections import Names
from agentlightning.types.work import MAX_ATTEMPTS, UNRESPONSIVE_SECONDS

Isolation = Literal["inline", "process"]


class RunnerSection(CallSection):
    """How an agent runs."""

    adapters: Names = []
    """Framework adapters to activate by name; adapters of imported frameworks are active anyway."""
    concurrency: int = Field(default=16, ge=0)
    """Rollouts at a time; 0: none in this process, other runners (`agl runner`) lease them."""
    isolation: Isolation = "inline"
    """Where the agent runs: in this process, or each attempt in one that can be killed (agl-cluster)."""
    timeout_seconds: float | None = Field(default=60.0, gt=0)
    """Seconds of one attempt; null: no limit."""
    unresponsive_seconds: float | None = Field(default=UNRESPONSIVE_SECONDS, gt=0)
    """Seconds without a heartbeat after which an attempt is given to another runner; null: never."""
    max_attempts: int = Field(default=MAX_ATTEMPTS, ge=1)
    """Attempts of a rollout, if the failure table retries the kinds of its failures."""
    trusted: bool | None = None
    """Whether what the agent says of itself counts: rewards that it emits beside a judge's, and evidence that
    takes its calls out of training (``docs/rewards.md``). None: yes for Python agents, no for commands and
    where the runner gives agents pods of their own."""

    def rollout_config(self, table: FailureTable, *, trusted: bool = True) -> RolloutConfig:
        """Return the configuration of rollouts, whose failures are retried as ``table`` says. ``trusted``:
        whether the agent is, where the section does not say.
        """
        kinds = sorted(kind for kind, action in table.items() if action.retry)
        return RolloutConfig(
            timeout_seconds=self.timeout_seconds,
            unresponsive_seconds=self.unresponsive_seconds,
            max_attempts=self.max_attempts if kinds else 1,
            retry_on=kinds,
            trusted=trusted if self.trusted is None else self.trusted,
        )
