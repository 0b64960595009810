"""Records that store, gateway, runner, credit and driver exchange.

Every type is a :class:`msgspec.Struct`: cheap to make, cheap to send as JSON or MessagePack, and checked when
it is decoded. One word stands for one idea (see ``docs/architecture.md``). No record knows the store.

Invariant: *missing is not zero*. A reward that was never emitted is ``None`` everywhere; a rollout that
failed has no reward at all.
"""

from __future__ import annotations

from typing import Any

from agentlightning.types import aliases
from agentlightning.types.base import Mode, Model, Tags, UsageError, merge_tags, new_id
from agentlightning.types.recipe import LossAggregation, Recipe
from agentlightning.types.record import Call, EarlierAttempt, Record, Reward, Span, Triplet
from agentlightning.types.resources import LLM, JsonResource, PromptTemplate, ProxyLLM, Resource, Resources
from agentlightning.types.training import (
    AuditLink,
    Batch,
    Evaluation,
    Ledger,
    RolloutFingerprint,
    Row,
    Segment,
    StepReport,
)
from agentlightning.types.work import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Worker,
)

__all__ = [
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AuditLink",
    "Batch",
    "Call",
    "EarlierAttempt",
    "Evaluation",
    "JsonResource",
    "LLM",
    "Ledger",
    "LossAggregation",
    "Mode",
    "Model",
    "PromptTemplate",
    "ProxyLLM",
    "Recipe",
    "Record",
    "Resource",
    "Resources",
    "Reward",
    "Rollout",
    "RolloutConfig",
    "RolloutFingerprint",
    "RolloutStatus",
    "Row",
    "Segment",
    "Span",
    "StepReport",
    "Tags",
    "Triplet",
    "UsageError",
    "Worker",
    "merge_tags",
    "new_id",
]


def __getattr__(name: str) -> Any:
    if name not in aliases.TYPES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[aliases.successor(name, aliases.TYPES[name], __name__)]
