"""Writes the end of an attempt: its spans and rewards, its outcome, and the transitions that the agent
returned.

The recorded calls decide whether the agent or the model failed (:func:`classify`), and what a returned
transition is (:class:`MatchedTransitions`). They are read when no further call can arrive. Two transactions
follow: the first adds the calls of the agent's own transitions; the second writes the attempt's end with the
rewards and with the ids of the calls that count. Calls are read only after that, and an attempt whose end is
never written is not trained.

Invariant: a record that no store can hold fails its attempt, not the runner.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import COUNTS, attempt_trace_id, new_span
from agentlightning.capture.emit import reward_attributes
from agentlightning.capture.records import BadRecord, admit, error_text, quarantine, short_repr
from agentlightning.runner.attempt import attempt_resources
from agentlightning.runner.outcome import RAISED, Outcome
from agentlightning.store import codec
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Call,
    Resource,
    RolloutStatus,
    Span,
    Triplet,
)
from agentlightning.types.arrays import Floats
from agentlightning.types.failure import TRACEBACK
from agentlightning.types.select import policy_for, with_role
from agentlightning.types.tokens import TokenIds

log = logging.getLogger(__name__)
UNSTORABLE = (TypeError, ValueError, ArithmeticError, RecursionError)
"""Errors of a record that has no stored form; the store itself works."""
NO_CALL = "no-call"
CLOSE = 1e-3
"""Largest difference between two logprobs of one token that do not conflict."""


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
        metadata: dict[str, Any] = {semconv.JUDGED: True} if self.judged else {}
        try:
            outcome = await self._settle(lease, outcome, metadata)
            spans += outcome.spans
            end: dict[str, Any] = {
                "reason": outcome.reason,
                "returned": outcome.returned,
                "metadata": metadata or None,
            }
            try:
                attempt = await self.store.update_attempt(*ids, outcome.status, spans=spans, **end)
            except UNSTORABLE as error:
                attempt = await self._write_storable(ids, spans, error)
        except AttemptEnded as error:
            self.counts["fenced"] += 1
            [rollout] = await self.store.query_rollouts(rollout_ids=[ids[0]]) or [lease.rollout]
            # Who cancels rollouts says so; their agents need not say it again, one by one.
            level = logging.INFO if rollout.status == RolloutStatus.CANCELLED else logging.WARNING
            log.log(level, "attempt %s: its end was refused: %s", ids[1], error)
            return lease.attempt
        self.counts[attempt.status] += 1
        return attempt

    async def _settle(self, lease: AttemptedRollout, outcome: Outcome, metadata: dict[str, Any]) -> Outcome:
        """Match the returned transitions with the recorded calls and give a failure its kind. Return the
        outcome, and add to the attempt's ``metadata``. Transitions that contradict the recorded calls are
        counted, and fail the attempt.
        """
        ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
        if outcome.triplets:
            try:
                if not lease.rollout.config.trusted:
                    raise BadRecord(
                        "it returned transitions, which count for an agent that is trusted: set agent.trusted"
                    )
                resources = await attempt_resources(self.store, lease.rollout)
                recorded = [c for c in await self.store.query_calls(*ids) if c.api != "supplied"]
                matched = MatchedTransitions(lease, recorded, self.policies, resources)
                matched.match(outcome.triplets)
                if matched.calls:
                    await self.store.add_calls(matched.calls, fence=lease.attempt.fence)
            except UNSTORABLE as error:
                bad = error
                if not isinstance(bad, BadRecord):
                    bad = BadRecord(f"it cannot be stored: {error_text(error)}")
                self.counts["supplied-refused"] += 1
                await self.store.count("refused", "supplied-conflict", rollout_id=ids[0], attempt_id=ids[1])
                metadata.clear()
                return Outcome(AttemptStatus.FAILED, bad.reason, returned=outcome.returned)
            metadata[semconv.SUPPLIED] = matched.named
            outcome.returned += matched.rewards
        if outcome.traceback is not None:
            metadata[TRACEBACK] = outcome.traceback
        return await classify(self.store, lease, outcome, calls_recorded=self.calls_recorded)

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


@dataclass(slots=True)
class MatchedTransitions:
    """Triplets of one attempt, matched with its recorded calls."""

    lease: AttemptedRollout
    recorded: Sequence[Call]
    policies: Mapping[str, str]
    resources: Mapping[str, Resource]
    calls: list[Call] = field(default_factory=list)
    """New calls to store."""
    rewards: list[Span] = field(default_factory=list)
    """Spans of the rewards of calls."""
    named: list[str] = field(default_factory=list)
    """Ids of all calls that count."""

    def match(self, triplets: Sequence[Triplet]) -> None:
        """Match the triplets. Raise :class:`BadRecord` if a triplet contradicts a recorded call."""
        for index, triplet in enumerate(triplets):
            if triplet.call_id is None:
                call = self._new_call(triplet, index)
                self.calls.append(call)
            else:
                call = self._recorded_call(triplet, index)
            self.named.append(call.call_id)
            if triplet.reward is not None:
                attributes = reward_attributes(triplet.reward, final=False)
                of_call = {semconv.REWARD_CALL: call.call_id, semconv.SUPPLIED: True}
                context = AttemptContext(call.rollout_id, call.attempt_id, sink=lambda span: None)
                trace = attempt_trace_id(call.attempt_id), None
                self.rewards.append(new_span(context, semconv.REWARD_SPAN, trace, attributes | of_call))

    def _new_call(self, triplet: Triplet, index: int) -> Call:
        """Return a new call, numbered after the recorded calls in the order of the list."""
        known = dict(triplet.metadata)
        policy = self._policy(known.pop("policy", None), triplet, f"triplet {index}")
        call = Call(
            call_id=f"{self.lease.attempt.attempt_id}-supplied.{index}",
            rollout_id=self.lease.rollout.rollout_id,
            attempt_id=self.lease.attempt.attempt_id,
            sequence=max((call.sequence for call in self.recorded), default=-1) + 1 + len(self.calls),
            api="supplied",
            policy=policy,
            model=known.pop("model", None) or policy,
            policy_version=known.pop("policy_version", None),
            sampling=known.pop("sampling", None) or {},
            tags=triplet.tags,
            prompt_ids=TokenIds(triplet.prompt_ids),
            response_ids=TokenIds(triplet.response_ids),
            logprobs=None if triplet.logprobs is None else Floats(triplet.logprobs),
            request={"metadata": known} if known else None,
        )
        call.start_time = call.end_time = time.time()
        return call

    def _policy(self, named: str | None, triplet: Triplet, where: str) -> str:
        """Return the policy of a transition: the named one; else the policy of its agent; else the policy of
        all recorded calls; else the policy that the rollout's endpoint serves. Raise :class:`BadRecord` if
        the attempt could not call it, or if it does not take the ids.
        """
        models = {r.model: r for r in self.resources.values() if isinstance(r, LLM)}
        routed = {call.policy for call in self.recorded}
        policy = named or policy_for(self.policies, with_role(triplet.tags))
        policy = policy or next(iter(routed if len(routed) == 1 else models), "default")
        served = {*models, *self.policies.values(), *routed}
        if models and policy not in served:
            raise BadRecord(
                f"{where}: metadata['policy'] is {short_repr(policy)}, which is not served here: one of "
                f"{', '.join(sorted(served))}, or leave it out"
            )
        if (model := models.get(policy)) is not None:
            _check_ids(triplet, model, where)
        return policy

    def _recorded_call(self, triplet: Triplet, index: int) -> Call:
        """Return the recorded call that the triplet names by call id or response id. Raise
        :class:`BadRecord` if there is none, or if the triplet differs from it.
        """
        name = triplet.call_id
        found = [c for c in self.recorded if c.call_id == name] or [
            c for c in self.recorded if c.response_id == name
        ]
        where = f"triplet {index}: call_id {name!r}"
        if len(found) != 1:
            how_many = "several recorded calls" if found else "no recorded call of the attempt"
            raise BadRecord(f"{where} names {how_many}; leave call_id out for a transition of your own")
        if found[0].call_id in self.named:
            raise BadRecord(f"{where} names a call that an earlier triplet named")
        if differing := _difference(triplet, found[0]):
            raise BadRecord(
                f"{where} conflicts with what was recorded: {differing}; leave call_id out to hand in a "
                "transition of your own"
            )
        return found[0]


def _check_ids(triplet: Triplet, model: LLM, where: str) -> None:
    """Check that the ids are in the model's vocabulary and fit its context."""
    for name in ("prompt_ids", "response_ids"):
        largest = max(getattr(triplet, name), default=0)
        if model.vocabulary is not None and largest >= model.vocabulary:
            raise BadRecord(
                f"{where}: {name} holds {largest}, outside the vocabulary of policy {model.model!r}, whose "
                f"token ids are 0 to {model.vocabulary - 1}"
            )
    length = len(triplet.prompt_ids) + len(triplet.response_ids)
    if model.context is not None and length > model.context:
        raise BadRecord(
            f"{where}: prompt_ids and response_ids are {length} tokens; policy {model.model!r} takes "
            f"{model.context}"
        )


def _difference(triplet: Triplet, call: Call) -> str:
    """Return the first difference between a triplet and the call that it names, or an empty text. Empty
    fields of the triplet are not compared.
    """
    if triplet.prompt_ids or triplet.response_ids:
        for name in ("prompt_ids", "response_ids"):
            mine, theirs = getattr(triplet, name), getattr(call, name)
            if theirs is None:
                return f"it has no {name}"
            if mine != theirs:
                at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
                return f"{name} differ at {min(len(mine), len(theirs)) if at is None else at}"
    if triplet.logprobs is not None:
        if call.logprobs is None:
            return "it has no logprobs"
        for i, (a, b) in enumerate(zip(triplet.logprobs, call.logprobs, strict=False)):
            if abs(a - b) > CLOSE:
                return f"logprobs differ at {i}"
    for name, value in triplet.tags.items():
        if call.tags.get(name) != value:
            return f"tag {name!r} is {call.tags.get(name)!r}, not {value!r}"
    return ""
