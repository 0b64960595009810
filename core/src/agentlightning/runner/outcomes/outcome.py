"""What an agent returned or raised → the attempt's status, kind of failure and reward.

A failure is not a reward of 0: an attempt that raised, timed out or returned nonsense has no reward. Its
``reason`` begins with its kind (:mod:`agentlightning.types.failure`). :func:`classify` decides by the
attempt's recorded calls whether the agent or the model failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from agentlightning.capture.emit.validation import BadRecord, reward_number
from agentlightning.capture.spans.convert import error_text
from agentlightning.decorator.errors import BadReward
from agentlightning.gateway.upstream.answer import is_over_length
from agentlightning.runner.outcomes.tracebacks import format_traceback
from agentlightning.store.base import Store
from agentlightning.types import AttemptedRollout, AttemptStatus, Call, Span
from agentlightning.types.arrays import unwrap_scalar

RAISED = "agent-raised"
NO_CALL = "no-call"
TOO_LONG_STATUS = (400, 413, 422)
"""HTTP statuses with which engines refuse a prompt that does not fit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt."""

    status: AttemptStatus
    reason: str | None = None
    reward: float | None = None
    spans: Sequence[Span] = ()
    traceback: str | None = None
    """Traceback of the error that the agent raised (:mod:`.tracebacks`)."""


def outcome_of_return(result: Any) -> Outcome:
    """The outcome of a returned value: a number is the final reward; ``None``: rewards were emitted."""
    try:
        result = unwrap_scalar(result)
        value = float(result) if isinstance(result, Real) else None
    except Exception as error:
        return _bad_reward(f"a {type(result).__name__} that cannot be read as a number: {error_text(error)}")
    if result is None:
        return Outcome(AttemptStatus.SUCCEEDED)
    if value is not None:
        try:
            return Outcome(AttemptStatus.SUCCEEDED, reward=reward_number(value, "the returned reward"))
        except BadRecord as bad:
            return _bad_reward(f"{value:g}: {bad}")
    listed = isinstance(result, Sequence) and not isinstance(result, str | bytes)
    if listed and all(isinstance(span, Span) for span in result):
        return Outcome(AttemptStatus.SUCCEEDED, spans=result)
    return _bad_reward(f"{type(result).__name__}; return a number, None (after emit_reward), or spans")


def _bad_reward(what: str) -> Outcome:
    return Outcome(AttemptStatus.FAILED, f"bad-reward: the agent returned {what}")


def outcome_of_error(error: BaseException) -> Outcome:
    """The outcome of an error that the agent raised, its own timeouts included. One in which the model
    refuses a prompt that is too long is ``over-length``.
    """
    if isinstance(error, BadRecord):
        return Outcome(AttemptStatus.FAILED, error.reason)
    if isinstance(error, BadReward):
        return Outcome(AttemptStatus.FAILED, f"bad-reward: {error_text(error)}")
    kind = "over-length" if any(map(_is_over_length, _causes(error))) else RAISED
    reason = f"{kind}: {type(error).__name__}: {error_text(error)}"
    return Outcome(AttemptStatus.FAILED, reason, traceback=format_traceback(error))


def timed_out(timeout: float | None, why: str = "") -> Outcome:
    """The attempt took longer than its limit, in seconds. ``why``: the cause, if it is known."""
    reason = f"timeout: the attempt took longer than {timeout:g} s"
    return Outcome(AttemptStatus.TIMEOUT, f"{reason}: {why}" if why else reason)


def cancelled(why: str = "the attempt was stopped from outside") -> Outcome:
    """The runner stopped the attempt: its lease went to another, serving ended, or it cannot run it."""
    return Outcome(AttemptStatus.FAILED, f"cancelled: {why}")


async def classify(
    store: Store, lease: AttemptedRollout, outcome: Outcome, *, calls_recorded: bool
) -> Outcome:
    """Give a failure its kind by the attempt's recorded calls, once no further call can arrive.

    An agent that raised after the model had failed it has the model's kind. An agent in training that
    returned without a call is ``no-call``: credit finds that by itself, and here the attempt fails if such
    attempts are tried again. The calls are read only in these two cases. ``calls_recorded``: a gateway
    records them.
    """
    idle = calls_recorded and lease.rollout.mode == "train" and NO_CALL in lease.rollout.config.retry_on
    raised = outcome.reason is not None and outcome.reason.startswith(f"{RAISED}:")
    if not raised and not (idle and outcome.status is AttemptStatus.SUCCEEDED):
        return outcome
    calls = await store.query_calls(lease.rollout.rollout_id, lease.attempt.attempt_id)
    if raised:
        kind = model_fault(calls)
        error = (outcome.reason or "").removeprefix(RAISED)
        return replace(outcome, reason=f"{kind}{error}") if kind else outcome
    if any(call.status == "ok" for call in calls):
        return outcome
    return Outcome(AttemptStatus.FAILED, f"{NO_CALL}: the agent returned without one answer of the model")


def model_fault(calls: Sequence[Call]) -> str | None:
    """The kind of failure of the last call that was not cancelled; ``None`` if it was answered, or there is
    none.

    The gateway writes the error of a call into ``error``: ``HTTP <status> …`` if the engine refused it,
    another word if the engine gave no answer; ``masked`` says that the prompt was too long.
    """
    ended = [call for call in calls if call.status != "cancelled"]
    last = max(ended, key=lambda call: (call.end_time, call.sequence), default=None)
    if last is None or last.status != "error":
        return None
    if last.masked == "over-length":
        return "over-length"
    return "model-4xx" if re.match(r"HTTP 4\d\d\b", last.error or "") else "model-5xx"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups; each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _is_over_length(error: BaseException) -> bool:
    """Whether an SDK's error says that the prompt does not fit the model's context."""
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    if status not in TOO_LONG_STATUS:
        return False
    return is_over_length(code if isinstance(code, str) else "", error_text(error))
