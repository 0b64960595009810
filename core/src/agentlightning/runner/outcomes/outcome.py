"""How an attempt ended: status, kind of failure, reward, and what the agent handed in.

A failure is not a reward of 0: an attempt that raised, timed out or returned nonsense has no reward. The
``reason`` of a failure begins with its kind (:mod:`agentlightning.types.failure`). :func:`classify` reads the
attempt's recorded calls and decides whether the agent or the model failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from agentlightning.capture.records import BadRecord, error_text
from agentlightning.decorator.reward_function import BadReward
from agentlightning.gateway.upstream.answer import is_over_length
from agentlightning.runner.outcomes.tracebacks import format_traceback
from agentlightning.store.base import Store
from agentlightning.types import AttemptedRollout, AttemptStatus, Call, Span, Triplet, UsageError

RAISED = "agent-raised"
NO_CALL = "no-call"
TOO_LONG_STATUS = (400, 413, 422)
"""HTTP statuses with which engines refuse a prompt that does not fit."""


class CannotRun(UsageError):
    """This runner cannot run such rollouts at all. Serving ends, and another runner may try the rollout."""


@dataclass(slots=True)
class Outcome:
    """The end of one attempt."""

    status: AttemptStatus
    reason: str | None = None
    reward: float | None = None
    """The number that the agent returned."""
    traceback: str | None = None
    """Traceback of the error that the agent raised (:mod:`.tracebacks`)."""
    triplets: list[Triplet] = field(default_factory=list)
    """Transitions that the agent returned."""
    returned: list[Span] = field(default_factory=list)
    """Spans of returned rewards. The store keeps them apart from emitted ones."""
    spans: list[Span] = field(default_factory=list)
    """Other spans that the agent returned."""


def outcome_of_error(error: BaseException) -> Outcome:
    """Return the outcome of an error that the agent raised, its own timeouts included. The kind is
    ``over-length`` if the error or one of its causes says that the model refused a prompt as too long.
    """
    if isinstance(error, BadRecord):
        return Outcome(AttemptStatus.FAILED, error.reason)
    if isinstance(error, BadReward):
        return Outcome(AttemptStatus.FAILED, f"bad-reward: {error_text(error)}")
    kind = "over-length" if any(map(_is_over_length, _causes(error))) else RAISED
    reason = f"{kind}: {type(error).__name__}: {error_text(error)}"
    return Outcome(AttemptStatus.FAILED, reason, traceback=format_traceback(error))


def timed_out(timeout: float | None, why: str = "") -> Outcome:
    """Return the outcome of an attempt that took longer than ``timeout`` seconds, and the cause if known."""
    reason = f"timeout: the attempt took longer than {timeout:g} s"
    return Outcome(AttemptStatus.TIMEOUT, f"{reason}: {why}" if why else reason)


def cancelled(why: str = "the attempt was stopped from outside") -> Outcome:
    """Return the outcome of an attempt that the runner stopped: another worker has the lease, serving ended,
    or this runner cannot run it.
    """
    return Outcome(AttemptStatus.FAILED, f"cancelled: {why}")


async def classify(
    store: Store, lease: AttemptedRollout, outcome: Outcome, *, calls_recorded: bool
) -> Outcome:
    """Return the outcome with the kind of failure that the attempt's recorded calls show. Call it when no
    further call can arrive.

    If the agent raised after a model call had failed, the kind is the model's. A training attempt that
    returned without a model call fails as ``no-call``, if the rollout retries that kind; otherwise it
    succeeds and credit reports ``no-call``. Calls are read only in these two cases. ``calls_recorded``: a
    gateway records the calls.
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
    if any(call.status == "ok" or (call.status == "cancelled" and call.response_ids) for call in calls):
        return outcome
    reason = f"{NO_CALL}: the agent returned without one answer of the model"
    return replace(outcome, status=AttemptStatus.FAILED, reason=reason, reward=None)


def model_fault(calls: Sequence[Call]) -> str | None:
    """Return the kind of failure of the last call that was not cancelled, or ``None`` if that call was
    answered or there is no call.

    The gateway writes the error of a call into ``error``: ``HTTP <status> …`` if the engine refused it,
    another text if the engine gave no answer. ``masked`` is ``over-length`` if the prompt was too long, and
    ``budget`` if the budget was spent.
    """
    ended = [call for call in calls if call.status != "cancelled"]
    last = max(ended, key=lambda call: (call.end_time, call.sequence), default=None)
    if last is None or last.status != "error":
        return None
    if last.masked in ("over-length", "budget"):
        return last.masked
    return "model-4xx" if re.match(r"HTTP 4\d\d\b", last.error or "") else "model-5xx"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the members of exception groups, each once."""
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
    """Return whether an SDK's error says that the prompt does not fit the model's context."""
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    if status not in TOO_LONG_STATUS:
        return False
    return is_over_length(code if isinstance(code, str) else "", error_text(error))
