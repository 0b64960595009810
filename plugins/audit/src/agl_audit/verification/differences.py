"""Differences between what was logged while a run was trained and what its store and files hold now."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentlightning.types import Record
from agentlightning.types.base import Model
from agl_audit.run import OpenRun

ABSENT = "nothing"
"""Stands for a missing value."""
_SHOWN = 60


class Difference(Model):
    """One difference from what was trained."""

    step: int | None
    rollout_id: str | None
    kind: str
    """Root causes as in ``docs/audit.md``, and ``consequence`` of the others."""
    call_id: str | None = None
    """The call that differs, if known."""
    of: str | None = None
    """Its place, if that is no step: an evaluation, a checkpoint, a file, the record, the chain."""
    then: Any = None
    now: Any = None
    text: str = ""
    """One sentence for a person, with step and rollout."""


def make_difference(
    kind: str,
    what: str,
    *,
    of: str | None = None,
    step: int | None = None,
    rollout: str | None = None,
    call: str | None = None,
    then: Any = None,
    now: Any = None,
) -> Difference:
    """Return a difference whose text begins with its place. A negative ``step`` is an evaluation's: none."""
    step = None if step is None or step < 0 else step
    names = {"step": step, "rollout": rollout, "call": call}
    where = [*filter(None, [of]), *(f"{word} {name}" for word, name in names.items() if name is not None)]
    text = f"{', '.join(where)}: {what}"
    return Difference(
        step=step, rollout_id=rollout, kind=kind, call_id=call, of=of, then=then, now=now, text=text
    )


def value_differences(
    kind: str,
    then: Any,
    now: Any,
    source: str,
    *,
    label: str = "",
    cause: str = "edited after training",
    recomputed: bool = False,
    **where: Any,
) -> Iterator[Difference]:
    """Yield a difference for each leaf of two plain values that differs.

    ``source``: the origin of ``now``, as in "the store says". ``label``: precedes the path of the leaf.
    ``recomputed``: ``now`` was computed again, so that numbers may differ by rounding. ``where``: the place,
    as for :func:`make_difference`.
    """
    for path, was, is_ in leaf_differences(then, now):
        if not (recomputed and close(was, is_)):
            what = f"{label}{path} was logged as {shorten(was)}, {source} {shorten(is_)} ({cause})"
            yield make_difference(kind, what, then=was, now=is_, **where)


def leaf_differences(then: Any, now: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, then, now) of every leaf that differs; ``ABSENT`` where a side has none. NaN is equal to
    NaN.
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*then, *now]):
            path = f"{at}.{key}" if at else str(key)
            yield from leaf_differences(then.get(key, ABSENT), now.get(key, ABSENT), path)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from leaf_differences(one, other, f"{at}[{index}]")
    elif then != now and (then == then or now == now):
        yield at, then, now


def close(then: Any, now: Any) -> bool:
    """Whether two computed numbers differ by rounding alone."""
    numbers = isinstance(then, int | float) and isinstance(now, int | float)
    return numbers and math.isclose(then, now, rel_tol=1e-9, abs_tol=1e-12)


def shorten(value: Any) -> str:
    """Return a value as it is shown in a sentence."""
    text: str = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


async def read_records(
    run: OpenRun, rollouts: Sequence[str], step: int | None, of: str | None = None
) -> tuple[list[Record], list[Difference]]:
    """Return the records of ``rollouts``, and a difference for each rollout that the store lost or cannot
    read.
    """
    known = await run.known(rollouts)
    what = "the store no longer has it (deleted after training)"
    lost = [make_difference("missing", what, of=of, step=step, rollout=r) for r in rollouts if r not in known]
    here = [rollout for rollout in rollouts if rollout in known]
    if together := await readable(run, here):
        return together, lost
    records: list[Record] = []
    for rollout in here:
        try:
            records += await run.store.records([rollout])
        except Exception as error:
            what = f"its record cannot be read ({type(error).__name__}: {error}): damaged after training"
            lost.append(make_difference("unreadable", what, of=of, step=step, rollout=rollout))
    return records, lost


async def readable(run: OpenRun, rollouts: Sequence[str]) -> list[Record]:
    """Return all records, or none if one of them is damaged."""
    try:
        return await run.store.records(rollouts)
    except Exception:
        return []
