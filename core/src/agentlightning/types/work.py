"""Units of work: rollouts, the attempts that execute them, the workers that lease them, and what they are
done with: resources, and folders of policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentlightning.types.base import LogprobsMode, Mode, Model, vendor


class RolloutStatus(StrEnum):
    """Status of a rollout. The last three are final."""

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
    """Status of an attempt. All but the first two, and ``unresponsive``, are final."""

    PREPARING = "preparing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    UNRESPONSIVE = "unresponsive"


UNRESPONSIVE_SECONDS = 60.0
"""Silence after which a worker counts as dead: twelve heartbeats of our runners. A paused machine, or a
hand-written worker that only makes model calls, stays below it; a dead machine costs a minute.
"""
MAX_ATTEMPTS = 3
"""Maximal number of attempts of a rollout with failures of retried kinds."""
RETRIED_KINDS = ("bad-record", "cancelled", "model-5xx", "unresponsive")
"""Kinds of failure that are retried by default: they are not the agent's fault."""


class RolloutConfig(Model):
    """Retries and time limits of a rollout, and whether its agent is trusted. The defaults are the
    trainer's, except that only the trainer limits an attempt.
    """

    timeout_seconds: float | None = None
    """Wall time of one attempt; ``None``: no limit."""
    unresponsive_seconds: float | None = UNRESPONSIVE_SECONDS
    """Silence (no heartbeat, call or span) after which an attempt counts as unresponsive; ``None``: never."""
    max_attempts: int = MAX_ATTEMPTS
    """Maximal number of attempts, the first included."""
    retry_condition: list[AttemptStatus] = []
    """Ends of an attempt that lead to another one, while ``max_attempts`` allows."""
    retry_on: list[str] = msgspec.field(default_factory=lambda: list(RETRIED_KINDS))
    """Kinds of failure (:mod:`agentlightning.types.failure`) that do so too."""
    trusted: bool = True
    """Whether what the agent says of itself counts beside the gateway's record and a judge's rewards
    (``docs/rewards.md``). False: what came with the attempt's own key is kept and counted, and trained only
    where no judge gave a reward."""


class Rollout(Model):
    """One unit of work: a task run against given resources."""

    rollout_id: str
    input: Any = None
    status: RolloutStatus = RolloutStatus.QUEUING
    mode: Mode = "train"
    run_id: str | None = None
    task_id: str | None = None
    """Id of its task."""
    group_id: str | None = None
    """Rollouts sampled together for one task; the default key that baselines group by."""
    sample: int = 0
    """Index within the group."""
    seed: int | None = None
    """Root of all sampling seeds of this rollout."""
    resources_id: str | None = None
    """Resources for its attempts: the named ones, else the latest when it was queued."""
    resources_version: int | None = None
    """Their newest version when it was queued. Later versions do not reach this rollout."""
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
    """Grows with each lease of the rollout; writes with an older fence are refused."""
    status: AttemptStatus = AttemptStatus.PREPARING
    worker_id: str | None = None
    start_time: float = 0.0
    end_time: float | None = None
    last_heartbeat_time: float | None = None
    reason: str | None = None
    metadata: dict[str, Any] = {}
    resources_id: str | None = None
    resources_version: int | None = None
    """The resources of this attempt."""


class AttemptedRollout(Model):
    """A lease: the rollout and the attempt that the worker now owns. The rollout's fields are attributes of
    the lease too: ``lease.input`` is ``lease.rollout.input``.
    """

    rollout: Rollout
    attempt: Attempt

    def __getattr__(self, name: str) -> Any:
        if name not in Rollout.__struct_fields__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.rollout, name)


class Worker(Model):
    """A process that runs rollouts."""

    worker_id: str
    status: Literal["idle", "busy", "unknown"] = "unknown"
    last_heartbeat_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None
    heartbeat_stats: dict[str, Any] = {}


# -------------------------------------------------------------------------------------------------- resources
class LLM(Model, tag="llm", tag_field="resource_type"):
    """A model endpoint given to agents: an OpenAI-compatible base URL, a key and a model name."""

    endpoint: str
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = {}
    replicas: list[str] = []
    """Further base URLs at which the same model is served. They are for the gateway, which sends all calls
    of an attempt to one of them; an agent has one address."""
    vocabulary: int | None = None
    """Size of the model's vocabulary, if known: token ids are 0 to ``vocabulary - 1``."""
    context: int | None = None
    """Tokens of prompt and answer together that the model accepts, if known."""
    logprobs_mode: LogprobsMode | None = None
    """What its logprobs are of, if known (``Call.logprobs_mode``)."""

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """The URL for an OpenAI client. The attempt travels in the key, not in the URL."""
        return self.endpoint

    def __repr__(self) -> str:  # a key must not end up in a log
        key = "***" if self.api_key else None
        return f"{type(self).__name__}(endpoint={self.endpoint!r}, model={self.model!r}, api_key={key})"


class ProxyLLM(LLM, tag="proxy_llm"):
    """The gateway as a model endpoint, with the attempt's key."""

    api_key: str | None = "agl-context"


class PromptTemplate(Model, tag="prompt_template", tag_field="resource_type"):
    """A prompt with placeholders."""

    template: str
    engine: Literal["f-string", "jinja"] = "f-string"

    def format(self, **values: Any) -> str:
        """Fill the placeholders; a missing value raises ``KeyError`` (f-string) or ``UndefinedError``
        (jinja).
        """
        if self.engine == "f-string":
            return self.template.format(**values)
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        return (
            ImmutableSandboxedEnvironment(undefined=StrictUndefined)
            .from_string(self.template)
            .render(**values)
        )


class JsonResource(Model, tag="json", tag_field="resource_type"):
    """Any other resource, as JSON."""

    value: Any = None


Resource = LLM | ProxyLLM | PromptTemplate | JsonResource


class Resources(Model):
    """A named, versioned bundle given to agents."""

    resources_id: str
    resources: dict[str, Resource] = {}
    version: int = 1
    create_time: float = 0.0


# --------------------------------------------------------------------------------------------------- policies
_HUB = re.compile(r"(?!models/|policies/|runs/)[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""``owner/name``, as models are called on the Hugging Face hub; not a folder as people call them."""


@dataclass(frozen=True, slots=True)
class PolicyFolder:
    """A policy in Hugging Face layout. ``train=False``: served as it is, never trained. ``options``: its
    driver's options, which win over the run's. ``name``: the key that the run gives it.
    """

    path: str | Path
    train: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "policy"


def missing_policy_message(given: str | Path) -> str:
    """Return the message that ``given`` is no folder; for the name of a hub's model, with what fetches it.
    Where its first part is a folder, a path was meant.
    """
    text = Path(given).as_posix()
    said = f"{given}: there is no such folder; a policy is a model folder in Hugging Face layout"
    if whose := vendor(text):
        return f"{said}. {whose} keeps this model's weights to itself; `agl policy list` has open ones"
    if not _HUB.fullmatch(text) or Path(text).parent.is_dir():
        return said
    return f"{said}. If it is a model of the Hugging Face hub, give hub:{text}, which agl-local downloads"
