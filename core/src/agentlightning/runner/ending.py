"""Writes the end of an attempt: its spans and rewards, and its outcome.

The recorded calls decide whether the agent or the model failed (:func:`classify`). They are read when no
further call can arrive. One transaction writes the attempt's end with its rewards. Calls are read only after
that, and an attempt whose end is never written is not trained.

Invariant: a record that no store can hold fails its attempt, not the runner.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentlightning import semconv
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.records import BadRecord, admit, error_text, quarantine
from agentlightning.runner.agent import HostedAgent
from agentlightning.runner.outcome import RAISED, Outcome
from agentlightning.store import codec
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import Attempt, AttemptedRollout, AttemptStatus, Call, RolloutStatus, Span

log = logging.getLogger(__name__)
UNSTORABLE = (TypeError, ValueError, ArithmeticError, RecursionError)
"""Errors of a record that has no stored form; the store itself works."""
NO_CALL = "no-call"


@dataclass(frozen=True, slots=True)
class EndWriter:
    """Writes ends of ``agent``'s attempts to ``store``. ``counts``: :attr:`.Runner.counts`.
    ``calls_recorded``: a gateway records the calls of the attempts.
    """

    agent: HostedAgent
    store: Store
    counts: Counter[str]
    calls_recorded: bool

    async def write(self, lease: AttemptedRollout, outcome: Outcome, spans: list[Span]) -> Attempt:
        """Write the end and return the attempt as it is stored. ``spans`` and ``outcome.returned`` become the
        written spans. If the attempt has ended already, the end is dropped and counted.
        """
        ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
        spans[:] = [admit(span, *ids) for span in spans]
        outcome.returned = [admit(span, *ids) for span in outcome.returned]
        try:
            outcome = await self.agent.settle(outcome, lease, self.store, spans, self.counts)
            outcome = await classify(self.store, lease, outcome, calls_recorded=self.calls_recorded)
            judged = {semconv.JUDGED: True} if self.agent.agent.judged else {}
            end: dict[str, Any] = {
                "reason": outcome.reason,
                "returned": outcome.returned,
                "metadata": {**judged, **outcome.metadata} or None,
            }
            try:
                attempt = await self.store.update_attempt(*ids, outcome.status, spans=spans, **end)
            except UNSTORABLE as error:
                attempt = await self._write_storable(ids, spans, error)
        except AttemptEnded as error:
            self.counts["fenced"] += 1
            rollout = await self.store.get_rollout_by_id(ids[0])
            # Who cancels rollouts says so; their agents need not say it again, one by one.
            level = logging.INFO if rollout.status == RolloutStatus.CANCELLED else logging.WARNING
            log.log(level, "attempt %s: its end was refused: %s", ids[1], error)
            return lease.attempt
        self.counts[attempt.status] += 1
        return attempt

    async def _write_storable(self, ids: tuple[str, str], spans: list[Span], error: Exception) -> Attempt:
        """Write a failure with the spans that can be stored. If none can, write it without spans and count
        them.
        """
        reason = f"bad-record: what the attempt recorded could not be stored: {error_text(error)}"
        spans[:] = [_storable(span, *ids) for span in spans]
        try:
            return await self.store.update_attempt(*ids, AttemptStatus.FAILED, reason=reason, spans=spans)
        except UNSTORABLE:
            COUNTS.add("unstorable-span", len(spans))
            spans.clear()
            return await self.store.update_attempt(*ids, AttemptStatus.FAILED, reason=reason)


def _storable(span: Span, rollout_id: str, attempt_id: str) -> Span:
    """Return the span, or a bad-record span with the reason if it has no stored form."""
    try:
        codec.pack_span(span)
        return span
    except UNSTORABLE as error:
        bad = BadRecord(f"the span has no stored form: {error_text(error)}")
        return quarantine(span, bad, rollout_id, attempt_id)


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
    reason = f"{NO_CALL}: {outcome.reason or 'the agent returned without one answer of the model'}"
    return replace(outcome, status=AttemptStatus.FAILED, reason=reason)


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
