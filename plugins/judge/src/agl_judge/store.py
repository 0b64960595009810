"""The operation that gives ended rollouts their reward, afterwards and as a judge's.

Invariants: only a trainer may write such a reward, never a runner or an attempt's key; an attempt gets one at
most; what it did and the rewards that it had stay on record beside it. A grade without a value is stored as a
reward that is missing, so that nothing falls back on what the agent said of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentlightning import semconv
from agentlightning.capture.delivery import attempt_trace_id
from agentlightning.capture.emit import reward_attributes
from agentlightning.store import codec
from agentlightning.store.base import Conflict, NotFound
from agentlightning.store.sql import schema
from agentlightning.store.sql.attempts import FINAL_STATUSES, attempt_state
from agentlightning.store.sql.core import Tables, everywhere, write
from agentlightning.store.sql.rollouts import find_rollout
from agentlightning.store.sql.trace import insert_spans
from agentlightning.types import Model, Rollout, Span

GRADED = "group_reward"
"""In a rollout's metadata: the attempt that was graded, and by what."""
GRADER = "agl.group_reward.by"
"""On a reward: what gave it."""
JUDGED_IN = "agl.group_reward.calls"
"""On a reward: the rollouts that hold the judge's calls, with commas between them."""


class Grade(Model):
    """What a group's reward says of one rollout."""

    rollout_id: str
    attempt_id: str
    value: float | None
    """``None``: there is none, for ``reason``."""
    by: str
    """What gave it, e.g. ``rank``."""
    reason: str = ""
    parts: dict[str, float] = {}
    """Further rewards by name, which are shown and not trained: the criteria of a rubric."""
    calls: list[str] = []
    """Rollouts that hold the judge's calls."""


def is_graded(rollout: Rollout, attempt_id: str) -> bool:
    """Return whether the attempt of a rollout has its grade."""
    known = rollout.metadata.get(GRADED)
    return isinstance(known, dict) and known.get("attempt") == attempt_id


@everywhere
@write
def add_group_rewards(store: Tables, grades: Sequence[Grade]) -> int:
    """Store grades of the latest attempts of ended rollouts, all or none; return how many are new. An attempt
    that has its grade keeps it. Raise ``NotFound`` for an unknown attempt, ``Conflict`` for one that has not
    ended, or that another followed.
    """
    store.db.lock_rollouts([one.rollout_id for one in grades])
    return sum(_add(store, one) for one in grades)


def _add(store: Tables, grade: Grade) -> bool:
    state = attempt_state(store, grade.rollout_id, grade.attempt_id)
    if state is None:
        raise NotFound(f"rollout {grade.rollout_id} has no attempt {grade.attempt_id}")
    attempt = state.attempt
    if attempt.status not in FINAL_STATUSES or attempt.sequence_id != state.latest:
        raise Conflict(
            f"attempt {grade.attempt_id} of {grade.rollout_id} has not ended, or another followed: a group's "
            "reward is for the latest attempt of a rollout that has ended"
        )
    rollout = find_rollout(store, grade.rollout_id)
    if is_graded(rollout, grade.attempt_id):
        return False
    spans = [_span(store, grade, _attributes(grade))]
    spans += [
        _span(store, grade, reward_attributes(value, name, final=True)) for name, value in grade.parts.items()
    ]
    for number, span in enumerate(spans, state.arrivals + 1):
        span.sequence_id = number
    insert_spans(store, spans, returned=True)
    key = {"rollout_id": attempt.rollout_id, "sequence_id": attempt.sequence_id}
    store.db.update(schema.attempts, key, arrivals=state.arrivals + len(spans))
    mark: dict[str, Any] = {"attempt": grade.attempt_id, "by": grade.by}
    if grade.reason:
        mark["missing"] = grade.reason
    metadata = {**rollout.metadata, GRADED: mark}
    store.db.update(schema.rollouts, {"rollout_id": rollout.rollout_id}, metadata=codec.pack(metadata))
    return True


def _attributes(grade: Grade) -> dict[str, Any]:
    """Return the attributes of a grade's span; a grade without a value has a reward without a number."""
    more = {GRADER: grade.by, **({JUDGED_IN: ",".join(grade.calls)} if grade.calls else {})}
    if grade.value is None:
        named = {semconv.REWARD_NAME: "reward", semconv.REWARD_FINAL: True}
        return {**named, semconv.REWARD_MISSING: f"{GRADED}: {grade.reason}", **more}
    return {**reward_attributes(grade.value, final=True), **more}


def _span(store: Tables, grade: Grade, attributes: dict[str, Any]) -> Span:
    now = store.clock()
    return Span(
        rollout_id=grade.rollout_id,
        attempt_id=grade.attempt_id,
        name=semconv.REWARD_SPAN,
        trace_id=attempt_trace_id(grade.attempt_id),
        attributes={name: value for name, value in attributes.items() if value is not None},
        start_time=now,
        end_time=now,
    )
