"""Units of work: rollouts, the attempts that execute them, and the workers that lease them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from agentlightning.types.base import Mode, Model


class RolloutStatus(StrEnum):
    """Where a rollout stands. The last three are final."""

    QUEUING = "queuing"
    PREPARING = "preparing"
    RUNNING = "running"
    REQUEUING = "requeuing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """No further attempt will be made."""
        return self in (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)


class AttemptStatus(StrEnum):
    """Where one execution stands. All but the first two, and ``unresponsive``, are final."""

    PREPARING = "preparing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNRESPONSIVE = "unresponsive"


UNRESPONSIVE_SECONDS = 60.0
"""Silence after which a worker is taken for dead: twelve signs of life of our runners. A pause of the machine
or a hand-written worker that only makes model calls does not reach it, and a dead machine costs a minute.
"""
MAX_ATTEMPTS = 3
"""Attempts of a rollout whose failures are all of kinds that are tried again."""
RETRIED_KINDS = ("bad-record", "cancelled", "model-5xx", "unresponsive")
"""Kinds of failure that are tried again by default: they are nobody's fault in the agent."""


class RolloutConfig(Model):
    """How often and how long a rollout is tried, and whose word on its reward counts. The defaults are those
    of the trainer, but for the limit of an attempt, which it alone has.
    """

    timeout_seconds: float | None = None
    """Wall time of one attempt; ``None``: no limit."""
    unresponsive_seconds: float | None = UNRESPONSIVE_SECONDS
    """Silence (no heartbeat, call or span) after which an attempt counts as unresponsive; ``None``: never."""
    max_attempts: int = MAX_ATTEMPTS
    """At most so many attempts, the first included."""
    retry_condition: list[AttemptStatus] = []
    """Ends of an attempt that lead to another one, while ``max_attempts`` allows."""
    retry_on: list[str] = msgspec.field(default_factory=lambda: list(RETRIED_KINDS))
    """Kinds of failure (:mod:`agentlightning.types.failure`) that do so too."""
    emitted_overrides_returned: bool = False
    """Whether a reward that the agent emits while it runs counts although the agent returns another one."""


class Rollout(Model):
    """One unit of work: a task run against given resources."""

    rollout_id: str
    input: Any = None
    status: RolloutStatus = RolloutStatus.QUEUING
    mode: Mode = "train"
    run_id: str | None = None
    task_id: str | None = None
    """Which task of the dataset this is."""
    group_id: str | None = None
    """Rollouts sampled together for one task; the default key that baselines group by."""
    sample: int = 0
    """Index within the group."""
    seed: int | None = None
    """Root of all sampling seeds of this rollout."""
    resources_id: str | None = None
    """What its attempts are given: as named, else the latest when it was put into the queue."""
    resources_version: int | None = None
    """The version that was the newest then. Later versions do not reach this rollout."""
    config: RolloutConfig = msgspec.field(default_factory=RolloutConfig)
    metadata: dict[str, Any] = {}
    attempts: int = 0
    """Attempts made so far."""
    start_time: float = 0.0
    end_time: float | None = None
    reason: str | None = None
    """Why it failed or was cancelled."""


class Attempt(Model):
    """One execution of a rollout, under a lease."""

    attempt_id: str
    rollout_id: str
    sequence_id: int = 1
    """1 for the first attempt of a rollout."""
    fence: int = 1
    """Grows with each lease of the rollout; a write with an older fence is refused."""
    status: AttemptStatus = AttemptStatus.PREPARING
    worker_id: str | None = None
    start_time: float = 0.0
    end_time: float | None = None
    last_heartbeat_time: float | None = None
    reason: str | None = None
    metadata: dict[str, Any] = {}
    resources_id: str | None = None
    resources_version: int | None = None
    """What it was given."""


class AttemptedRollout(Model):
    """A lease: the rollout and the attempt that the worker now owns."""

    rollout: Rollout
    attempt: Attempt


class Worker(Model):
    """A process that runs rollouts."""

    worker_id: str
    status: Literal["idle", "busy", "unknown"] = "unknown"
    last_heartbeat_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None
    heartbeat_stats: dict[str, Any] = {}
