"""How an attempt ended: status, kind of failure, reward, and what the agent handed in; read from what the
agent raised or returned.

A failure is not a reward of 0: an attempt that raised, timed out or returned nonsense has no reward. The
``reason`` of a failure begins with its kind (:mod:`agentlightning.types.failure`).

An agent returns a number or nothing. A list of its own transitions and spans is a plugin's to read
(``runner.agent.HostedAgent``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from agentlightning.capture.emit import returned_reward_span
from agentlightning.capture.records import BadRecord, error_text, reward_number
from agentlightning.decorator.reward_function import BadReward
from agentlightning.gateway.answer import is_over_length
from agentlightning.plugins.suite import not_installed
from agentlightning.runner.tracebacks import causes_of, format_traceback
from agentlightning.types import AttemptStatus, Span, UsageError
from agentlightning.types.arrays import unwrap_scalar
from agentlightning.types.failure import TRACEBACK

RAISED = "agent-raised"
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
    returned: list[Span] = field(default_factory=list)
    """Spans of returned rewards. The store keeps them apart from emitted ones."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the attempt's metadata say of the end, such as the traceback of the error that the agent raised
    (:mod:`.tracebacks`)."""
    supplied: dict[str, Any] | None = None
    """What a plugin read of the returned value, for ``runner.agent.HostedAgent.settle``, in plain values."""


def outcome_of_error(error: BaseException) -> Outcome:
    """Return the outcome of an error that the agent raised, its own timeouts included. The kind is
    ``over-length`` if the error or one of its causes says that the model refused a prompt as too long.
    """
    if isinstance(error, BadRecord):
        return Outcome(AttemptStatus.FAILED, error.reason)
    if isinstance(error, BadReward):
        return Outcome(AttemptStatus.FAILED, f"bad-reward: {error_text(error)}")
    kind = "over-length" if any(map(_is_over_length, causes_of(error))) else RAISED
    reason = f"{kind}: {type(error).__name__}: {error_text(error)}"
    traceback = format_traceback(error)
    return Outcome(AttemptStatus.FAILED, reason, metadata={} if traceback is None else {TRACEBACK: traceback})


def timed_out(timeout: float | None, why: str = "") -> Outcome:
    """Return the outcome of an attempt that took longer than ``timeout`` seconds, and the cause if known."""
    reason = f"timeout: the attempt took longer than {timeout:g} s"
    return Outcome(AttemptStatus.TIMEOUT, f"{reason}: {why}" if why else reason)


def cancelled(why: str = "the attempt was stopped from outside") -> Outcome:
    """Return the outcome of an attempt that the runner stopped: another worker has the lease, serving ended,
    or this runner cannot run it.
    """
    return Outcome(AttemptStatus.FAILED, f"cancelled: {why}")


def _is_over_length(error: BaseException) -> bool:
    """Return whether an SDK's error says that the prompt does not fit the model's context."""
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    if status not in TOO_LONG_STATUS:
        return False
    return is_over_length(code if isinstance(code, str) else "", error_text(error))


def read_return(result: Any) -> Outcome:
    """Return the outcome of a returned value: a number is the final reward, ``None`` and an empty list mean
    that rewards were emitted or are missing, and a plugin's agent may return an :class:`Outcome`. Any other
    value is a failure. Call it within the attempt: the reward's span is made here.
    """
    if isinstance(result, Outcome):
        return result
    try:
        reward = _final_reward(result)
    except BadRecord as bad:
        return Outcome(AttemptStatus.FAILED, bad.reason)
    except Exception as error:  # the agent's own classes may raise anything while they are read
        what = f"the returned {type(result).__name__} cannot be read: {error_text(error)}"
        return Outcome(AttemptStatus.FAILED, f"bad-record: {what}")
    return Outcome(AttemptStatus.SUCCEEDED, returned=[] if reward is None else [returned_reward_span(reward)])


def _final_reward(result: Any) -> float | None:
    """Return the returned number, or ``None`` for ``None`` and for an empty list."""
    kind = type(result).__name__
    try:
        value = unwrap_scalar(result)
        number = float(value) if isinstance(value, Real) else None
    except Exception as error:
        what = f"a {kind} that cannot be read as a number: {error_text(error)}"
        raise BadRecord(f"the agent returned {what}", "bad-reward") from None
    if number is not None:
        try:
            return reward_number(number, "the returned reward")
        except BadRecord as bad:
            raise BadRecord(f"the agent returned {number:g}: {bad}", bad.kind) from None
    items = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else None
    if value is None or (items is not None and not items):
        return None
    expected = "return a number, or None (after emit_reward)"
    for item in items or ():
        if (missing := not_installed("returned", type(item).__name__)) is not None:
            expected = f"a list of {type(item).__name__} is the agent's own record: {missing}"
            break
    raise BadRecord(f"the agent returned {kind}; {expected}", "bad-reward")
