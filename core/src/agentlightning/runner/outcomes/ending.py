"""The end of an attempt, as it is written: its spans and rewards, its outcome, and the transitions that the
agent handed in.

Invariant: what the agent recorded and no store can hold fails its attempt, not the runner.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.emit.validation import BadRecord, admit_all, quarantine
from agentlightning.capture.spans.convert import error_text
from agentlightning.runner.execute import AttemptResult
from agentlightning.runner.outcomes.outcome import Outcome, classify
from agentlightning.runner.outcomes.transitions import match_transitions
from agentlightning.runner.resources import attempt_resources
from agentlightning.store import codec
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import Attempt, AttemptedRollout, AttemptStatus, Span
from agentlightning.types.failure import TRACEBACK

log = logging.getLogger(__name__)
UNSTORABLE = (TypeError, ValueError, ArithmeticError, RecursionError)
"""Errors of a record that has no stored form; the store itself is well."""


@dataclass(frozen=True, slots=True)
class EndWriter:
    """Writes ends of attempts. ``counts``: as :attr:`.Runner.counts`."""

    store: Store
    policies: Mapping[str, str]
    counts: Counter[str]
    calls_recorded: bool
    """A gateway records the calls of the attempts."""

    async def write(self, lease: AttemptedRollout, result: AttemptResult, spans: list[Span]) -> Attempt:
        """Write an end; the attempt as it is now stored. ``spans`` and ``result.returned`` become what was
        written. An end that the store refuses, because the attempt has ended already, is counted.
        """
        ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
        for handed in (spans, result.returned):
            handed[:] = admit_all(handed, *ids)
        try:
            outcome, metadata = await self._outcome(lease, result, spans)
            try:
                attempt = await self.store.update_attempt(
                    *ids,
                    outcome.status,
                    reason=outcome.reason,
                    spans=spans,
                    returned=result.returned,
                    metadata=metadata,
                )
            except UNSTORABLE as error:
                attempt = await self._write_storable(*ids, spans, error)
        except AttemptEnded as error:
            self.counts["fenced"] += 1
            log.warning("attempt %s: its end was refused: %s", ids[1], error)
            return lease.attempt
        self.counts[attempt.status] += 1
        return attempt

    async def _outcome(
        self, lease: AttemptedRollout, result: AttemptResult, spans: list[Span]
    ) -> tuple[Outcome, dict[str, Any] | None]:
        """The outcome and the attempt's metadata, once the transitions that the agent handed in are matched
        with its calls, and a failure has its kind.
        """
        metadata = None
        if result.triplets and result.outcome.status is AttemptStatus.SUCCEEDED:
            try:
                resources = await attempt_resources(self.store, lease.rollout)
                matched = await match_transitions(
                    self.store, lease, result.triplets, policies=self.policies, resources=resources
                )
            except UNSTORABLE as error:
                return await self._refuse(lease, error), None
            metadata = matched.metadata
            result.returned += matched.rewards
        spans += result.outcome.spans
        if result.outcome.traceback is not None:
            metadata = {**(metadata or {}), TRACEBACK: result.outcome.traceback}
        outcome = await classify(self.store, lease, result.outcome, calls_recorded=self.calls_recorded)
        return outcome, metadata

    async def _refuse(self, lease: AttemptedRollout, error: Exception) -> Outcome:
        """Refuse transitions that contradict what was recorded."""
        if not isinstance(error, BadRecord):
            error = BadRecord(f"it cannot be stored: {error_text(error)}")
        self.counts["supplied-refused"] += 1
        rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        await self.store.count("refused", "supplied-conflict", rollout_id=rollout_id, attempt_id=attempt_id)
        return Outcome(AttemptStatus.FAILED, error.reason)

    async def _write_storable(
        self, rollout_id: str, attempt_id: str, spans: list[Span], error: Exception
    ) -> Attempt:
        """Write a failure with the spans that can be stored; if none can, without any, which is counted."""
        ids = (rollout_id, attempt_id)
        reason = f"bad-record: what the attempt recorded could not be stored: {error_text(error)}"
        spans[:] = [_storable(span, *ids) for span in spans]
        try:
            return await self.store.update_attempt(*ids, AttemptStatus.FAILED, reason=reason, spans=spans)
        except UNSTORABLE:
            COUNTS.add("unstorable-span", len(spans))
            spans.clear()
            return await self.store.update_attempt(*ids, AttemptStatus.FAILED, reason=reason)


def _storable(span: Span, rollout_id: str, attempt_id: str) -> Span:
    """The span, or one in its place that says why it has no stored form."""
    try:
        codec.pack_span(span)
        return span
    except UNSTORABLE as error:
        bad = BadRecord(f"the span has no stored form: {error_text(error)}")
        return quarantine(span, bad, rollout_id, attempt_id)
