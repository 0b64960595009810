"""What the contract of a store is written with: a clock that moves when told; spans and calls of a lease."""

from __future__ import annotations

from typing import Any

from agentlightning import semconv
from agentlightning.types import AttemptedRollout, Call, Span, new_id


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def span(lease: AttemptedRollout, name: str = "tool", **fields: Any) -> Span:
    """A span of a lease."""
    return Span(rollout_id=lease.rollout.rollout_id, attempt_id=lease.attempt.attempt_id, name=name, **fields)


def reward(lease: AttemptedRollout, value: Any, **attributes: Any) -> Span:
    """A reward span."""
    return span(lease, semconv.REWARD_SPAN, attributes={semconv.REWARD_VALUE: value, **attributes})


def call(lease: AttemptedRollout, sequence: int = 0, **fields: Any) -> Call:
    """A model call with ids."""
    values: dict[str, Any] = {
        "call_id": new_id("ca"),
        "sequence": sequence,
        "prompt_ids": [1, 2, 3 + sequence],
        "response_ids": [4, 5],
        "logprobs": [-0.5, -1.25],
        "request": {"messages": [{"role": "user", "content": "2+2?"}]},
        "response": {"role": "assistant", "content": "4"},
        "tags": {"agent": "solver"},
        "finish_reason": "stop",
        **fields,
    }
    return Call(rollout_id=lease.rollout.rollout_id, attempt_id=lease.attempt.attempt_id, **values)
