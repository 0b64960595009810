"""Messages between a runner and its worker process, in the encoding of the store's records.

So every value that a store can hold can be sent, and reading a message runs no code of the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from agentlightning.capture.context import AttemptContext
from agentlightning.runner.outcomes.outcome import Outcome
from agentlightning.store import codec
from agentlightning.types import Resource, Rollout, Span

LARGEST = 1 << 30
"""Largest message in bytes."""


class LoadAgent(msgspec.Struct, tag=True):
    """To the worker, first: the agent, pickled, and the adapters to activate."""

    agent: bytes
    adapters: list[str]


class AttemptJob(msgspec.Struct, tag=True, kw_only=True):
    """To the worker: run this attempt."""

    rollout: Rollout
    attempt_id: str
    key: str | None = None
    gateway: str | None = None
    policies: dict[str, str] = {}
    resources: dict[str, Resource] = {}

    def context(self, sink: Callable[[Span], None]) -> AttemptContext:
        """Return the identity under which the agent runs. Its spans go to ``sink``."""
        return AttemptContext(
            rollout_id=self.rollout.rollout_id,
            attempt_id=self.attempt_id,
            sink=sink,
            key=self.key,
            gateway=self.gateway,
            policies=self.policies,
            resources=self.resources,
            task=self.rollout.input,
        )


class AgentLoaded(msgspec.Struct, tag=True):
    """From the worker: it can run attempts, or ``error`` says why not."""

    error: str | None = None


class SpanMessage(msgspec.Struct, tag=True):
    """From the worker: a span of the attempt has ended."""

    attempt_id: str
    span: Span


class AttemptDone(msgspec.Struct, tag=True):
    """From the worker: the agent has ended. ``counts`` (of the runner) and ``capture`` are the counts since
    the last attempt.
    """

    attempt_id: str
    outcome: Outcome
    counts: dict[str, int]
    capture: dict[str, int]


ToWorker = LoadAgent | AttemptJob
FromWorker = AgentLoaded | SpanMessage | AttemptDone


def pack(message: ToWorker | FromWorker) -> bytes:
    """Encode a message. Raise ``TypeError`` or ``ValueError`` if a value has no encoding."""
    return codec.pack(message, small=LARGEST)  # within one machine it does not pay to compress


def unpack(data: bytes, kind: Any) -> Any:
    """Decode a message of type ``kind``. Raise ``ValueError`` for other data."""
    try:
        return codec.unpack(data, kind)
    except (codec.Corrupt, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
