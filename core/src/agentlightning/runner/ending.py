"""Writes the end of an attempt: its spans and rewards, its outcome, and the transitions that the agent
returned.

Invariant: a record that no store can hold fails its attempt, not the runner.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.records import BadRecord, admit, error_text, quarantine
from agentlightning.runner.outcomes.outcome import Outcome, classify
from agentlightning.runner.outcomes.transitions import match_transitions
from agentlightning.runner.resources import attempt_resources
from agentlightning.semconv import JUDGED, SUPPLIED
from agentlightning.store import codec
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import Attempt, AttemptedRollout, AttemptStatus, RolloutStatus, Span
from agentlightning.types.failure import TRACEBACK

log = logging.getLogger(__name__)
UNSTORABLE = (TypeError, ValueError, ArithmeticError, RecursionError)
"""Errors of a record that has no stored form; the store itself works."""


@dataclass(frozen=True, slots=True)
class EndWriter:
    """Writes ends of attempts to ``store``. ``counts``: :attr:`.Runner.counts`. ``calls_recorded``: a gateway
    records the calls of the attempts. ``judged``: :attr:`.LitAgent.judged`.
    """

    store: Store
    policies: Mapping[str, str]
    counts: Counter[str]
    calls_recorded: bool
    judged: bool = False

    async def write(self, lease: AttemptedRollout, outcome: Outcome, spans: list[Span]) -> Attempt:
        """Write the end and return the attempt as it is stored. ``spans`` and ``outcome.returned`` become the
        written spans. If the attempt has ended already, the end is dropped and counted.
        """
        ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
        spans[:] = [admit(span, *ids) for span in spans]
        outcome.returned = [admit(span, *ids) for span in outcome.returned]
        try:
            outcome, metadata = await self._settle(lease, outcome)
            spans += outcome.spans
            try:
                attempt = await self.store.update_attempt(
                    *ids,
                    outcome.status,
                    reason=outcome.reason,
                    spans=spans,
                    returned=outcome.returned,
                    metadata=metadata,
                )
            except UNSTORABLE as error:
                attempt = await self._write_storable(*ids, spans, error)
        except AttemptEnded as error:
            self.counts["fenced"] += 1
            [rollout] = await self.store.query_rollouts(rollout_ids=[ids[0]]) or [lease.rollout]
            # Who cancels rollouts says so; their agents need not say it again, one by one.
            level = logging.INFO if rollout.status == RolloutStatus.CANCELLED else logging.WARNING
            log.log(level, "attempt %s: its end was refused: %s", ids[1], error)
            return lease.attempt
        self.counts[attempt.status] += 1
        return attempt

    async def _settle(
        self, lease: AttemptedRollout, outcome: Outcome
    ) -> tuple[Outcome, dict[str, Any] | None]:
        """Match the returned transitions with the recorded calls and give a failure its kind. Return the
        outcome and the attempt's metadata.
        """
        metadata: dict[str, Any] = {JUDGED: True} if self.judged else {}
        if outcome.triplets:
            try:
                if not lease.rollout.config.trusted:
                    raise BadRecord(
                        "it returned transitions, which count for an agent that is trusted: set agent.trusted"
                    )
                resources = await attempt_resources(self.store, lease.rollout)
                matched = await match_transitions(
                    self.store, lease, outcome.triplets, policies=self.policies, resources=resources
                )
            except UNSTORABLE as error:
                return await self._refuse(lease, outcome, error), None
            metadata[SUPPLIED] = matched.named
            outcome.returned += matched.rewards
        if outcome.traceback is not None:
            metadata[TRACEBACK] = outcome.traceback
        outcome = await classify(self.store, lease, outcome, calls_recorded=self.calls_recorded)
        return outcome, metadata or None

    async def _refuse(self, lease: AttemptedRollout, outcome: Outcome, error: Exception) -> Outcome:
        """Count transitions that contradict the recorded calls, and return the failure."""
        if not isinstance(error, BadRecord):
            error = BadRecord(f"it cannot be stored: {error_text(error)}")
        self.counts["supplied-refused"] += 1
        rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        await self.store.count("refused", "supplied-conflict", rollout_id=rollout_id, attempt_id=attempt_id)
        return Outcome(AttemptStatus.FAILED, error.reason, returned=outcome.returned)

    async def _write_storable(
        self, rollout_id: str, attempt_id: str, spans: list[Span], error: Exception
    ) -> Attempt:
        """Write a failure with the spans that can be stored. If none can, write it without spans and count
        them.
        """
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
    """Return the span, or a bad-record span with the reason if it has no stored form."""
    try:
        codec.pack_span(span)
        return span
    except UNSTORABLE as error:
        bad = BadRecord(f"the span has no stored form: {error_text(error)}")
        return quarantine(span, bad, rollout_id, attempt_id)
