"""What runner and worker process say to each other: length-prefixed blobs (:mod:`agentlightning.store.codec`)
over a socket pair. So whatever a store can hold can be sent.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from agentlightning.runner.execute import AttemptResult
from agentlightning.store import codec
from agentlightning.types import Resource, Rollout, Span

HEAD = struct.Struct("!I")
LARGEST = 1 << 30
"""Bytes of a frame: more is not from a worker of ours."""


class WorkerSetup(msgspec.Struct, tag=True):
    """To the worker, first: the agent and how to import it."""

    agent: bytes
    prepared: dict[str, Any]
    adapters: list[str]
    parent: int
    """Process id of the runner."""


class AttemptJob(msgspec.Struct, tag=True, kw_only=True):
    """To the worker: run this attempt."""

    rollout: Rollout
    attempt_id: str
    key: str | None = None
    gateway: str | None = None
    policies: dict[str, str] = {}
    resources: dict[str, Resource] = {}


class WorkerReady(msgspec.Struct, tag=True):
    """From the worker: it can run the agent, or why not."""

    error: str | None = None


class SpanMessage(msgspec.Struct, tag=True):
    """From the worker: a span of the attempt has ended."""

    attempt_id: str
    span: Span


class AttemptDone(msgspec.Struct, tag=True):
    """From the worker: the agent has ended. ``counts`` and ``capture``: counted since the last one."""

    attempt_id: str
    ended: AttemptResult
    counts: dict[str, int]
    capture: dict[str, int]


ToWorker = WorkerSetup | AttemptJob
FromWorker = WorkerReady | SpanMessage | AttemptDone


def packed(frame: ToWorker | FromWorker) -> bytes:
    """A frame with its length before it."""
    body = codec.pack(frame, small=LARGEST)  # within one machine it does not pay to compress
    return HEAD.pack(len(body)) + body


def unpacked(body: bytes, kind: Any) -> Any:
    """The frame, of one of the kinds; ``ValueError``: it is none."""
    try:
        return codec.unpack(body, kind)
    except (codec.Corrupt, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
