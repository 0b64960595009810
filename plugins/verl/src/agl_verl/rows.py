"""Rows as verl trains them: one flat structure a row, small enough to send for every step.

verl wants a prompt, a response, and per response token a mask, the behaviour logprob and an advantage. Weight
and advantage travel as their product: with weights above 0 that is exact for clipped losses, which are
homogeneous in the advantage. Invariant: summed over a step, ``-Σ carrier · ratio`` is the loss that core's
credit means.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentlightning.types import Row, UsageError


class TrainRow(msgspec.Struct, array_like=True):
    """One row. ``response``, ``mask``, ``logprobs``, ``carrier`` have one entry a response token."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]
    carrier: list[float]
    """Weight × advantage."""
    oldest: int
    newest: int
    """Policy versions that its trained tokens were sampled from."""


class Step(msgspec.Struct):
    """What the trainer gets for one step."""

    rows: list[TrainRow]


class CannotTrain(UsageError, ValueError):
    """A row that verl's loss would not treat as credit means it."""


def train_row(row: Row) -> TrainRow:
    """``row`` for verl. Raises CannotTrain for what its loss would ignore."""
    if row.allowed:
        raise CannotTrain(
            f"row {row.row_id}: its tokens were sampled by guided choice, whose mask verl's loss does not "
            "apply; train such calls with the local driver, or drop them with `select`"
        )
    start = next((t for t, trained in enumerate(row.mask) if trained), None)
    if start is None:
        raise CannotTrain(f"row {row.row_id} has no trained token")
    versions = [v for v, trained in zip(row.versions, row.mask, strict=True) if trained and v >= 0] or [0]
    weighted = [w * a for w, a in zip(row.weights, row.advantages, strict=True)]
    return TrainRow(
        prompt=row.token_ids[:start],
        response=row.token_ids[start:],
        mask=row.mask[start:],
        logprobs=row.logprobs[start:],
        carrier=weighted[start:],
        oldest=min(versions),
        newest=max(versions),
    )


def step(rows: Sequence[Row]) -> Step:
    """The step's rows that have a trained token."""
    return Step([train_row(row) for row in rows if row.trained_tokens])


def pack(value: Step) -> bytes:
    """As bytes."""
    return msgspec.msgpack.encode(value)


def unpack(data: bytes) -> Step:
    """The inverse of :func:`pack`."""
    return msgspec.msgpack.decode(data, type=Step)
