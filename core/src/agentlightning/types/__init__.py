"""Records that store, gateway, runner, credit and driver exchange.

Every type is a :class:`msgspec.Struct`: cheap to make, cheap to send as JSON or MessagePack, and checked when
it is decoded. One word stands for one idea (see ``CONTRIBUTING.md``). No record knows the store.

Invariant: *missing is not zero*. A reward that was never emitted is ``None`` everywhere; a rollout that
failed has no reward at all.
"""

from __future__ import annotations

from typing import Any

from agentlightning._lazy import plugin_name
from agentlightning.types.base import (
    Mode as Mode,
    Model as Model,
    Tags as Tags,
    UsageError as UsageError,
    merge_tags as merge_tags,
    new_id as new_id,
)
from agentlightning.types.record import (
    Call as Call,
    EarlierAttempt as EarlierAttempt,
    Grammar as Grammar,
    Record as Record,
    Reward as Reward,
    Span as Span,
)
from agentlightning.types.training import (
    AuditLink as AuditLink,
    Batch as Batch,
    Correction as Correction,
    Evaluation as Evaluation,
    Ledger as Ledger,
    LossAggregation as LossAggregation,
    Progress as Progress,
    Recipe as Recipe,
    RolloutFingerprint as RolloutFingerprint,
    Row as Row,
    Segment as Segment,
    StepReport as StepReport,
)
from agentlightning.types.work import (
    LLM as LLM,
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptStatus as AttemptStatus,
    JsonResource as JsonResource,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    Resources as Resources,
    Rollout as Rollout,
    RolloutConfig as RolloutConfig,
    RolloutStatus as RolloutStatus,
    Worker as Worker,
)


def __getattr__(name: str) -> Any:
    return plugin_name(__name__, name)
