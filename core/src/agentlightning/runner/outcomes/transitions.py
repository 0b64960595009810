"""Matches the transitions that an agent returned with its recorded calls; makes calls and rewards of them.

The recorded calls are read once, when no further call can arrive. Two transactions follow: the first adds the
new calls; the second writes the attempt's end with the rewards and with the ids of the calls that count.
Calls are read only after that, and an attempt whose end is never written is not trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import attempt_trace_id, new_span
from agentlightning.capture.emit import reward_attributes
from agentlightning.capture.records import BadRecord, short_repr
from agentlightning.store.base import Store
from agentlightning.types import LLM, AttemptedRollout, Call, Resource, Span, Triplet
from agentlightning.types.arrays import Floats
from agentlightning.types.select import policy_for, with_role
from agentlightning.types.tokens import TokenIds

CLOSE = 1e-3
"""Largest difference between two logprobs of one token that do not conflict."""


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

    def match(self, triplets: Sequence[Triplet]) -> MatchedTransitions:
        """Match the triplets. Raise :class:`BadRecord` if a triplet contradicts a recorded call."""
        for index, triplet in enumerate(triplets):
            if triplet.call_id is None:
                call = self._new_call(triplet, index)
                self.calls.append(call)
            else:
                call = self._recorded_call(triplet, index)
            self.named.append(call.call_id)
            if triplet.reward is not None:
                self.rewards.append(self._reward_span(call, triplet.reward))
        return self

    def _new_call(self, triplet: Triplet, index: int) -> Call:
        """Return a new call, numbered after the recorded calls in the order of the list."""
        known = dict(triplet.metadata)
        policy = known.pop("policy", None) or self._policy(triplet)
        self._check_policy(policy, triplet, f"triplet {index}")
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

    def _check_policy(self, policy: str, triplet: Triplet, where: str) -> None:
        """Check that the attempt could call the policy and that the policy takes the ids."""
        models = {r.model: r for r in self.resources.values() if isinstance(r, LLM)}
        served = {*models, *self.policies.values(), *(call.policy for call in self.recorded)}
        if models and policy not in served:
            raise BadRecord(
                f"{where}: metadata['policy'] is {short_repr(policy)}, which is not served here: one of "
                f"{', '.join(sorted(served))}, or leave it out"
            )
        if (model := models.get(policy)) is not None:
            _check_ids(triplet, model, where)

    def _policy(self, triplet: Triplet) -> str:
        """Return the policy of a transition that names none: the policy of its agent; else the policy of all
        recorded calls; else the policy that the rollout's endpoint serves.
        """
        mapped = policy_for(self.policies, with_role(triplet.tags))
        if mapped:
            return mapped
        routed = {call.policy for call in self.recorded}
        if len(routed) == 1:
            return routed.pop()
        return next((r.model for r in self.resources.values() if isinstance(r, LLM)), "default")

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

    def _reward_span(self, call: Call, value: float) -> Span:
        """Return the span of a call's reward."""
        attributes = {
            **reward_attributes(value, final=False), semconv.REWARD_CALL: call.call_id, semconv.SUPPLIED: True
        }  # fmt: skip
        context = AttemptContext(call.rollout_id, call.attempt_id, sink=lambda span: None)
        return new_span(context, semconv.REWARD_SPAN, (attempt_trace_id(call.attempt_id), None), attributes)


async def match_transitions(
    store: Store,
    lease: AttemptedRollout,
    triplets: Sequence[Triplet],
    *,
    policies: Mapping[str, str],
    resources: Mapping[str, Resource],
) -> MatchedTransitions:
    """Match triplets with the attempt's recorded calls and store the new calls. ``policies`` and
    ``resources`` are the attempt's. :class:`BadRecord` is raised before a call is stored.
    """
    recorded = await store.query_calls(lease.rollout.rollout_id, lease.attempt.attempt_id)
    captured = [call for call in recorded if call.api != "supplied"]
    matched = MatchedTransitions(lease, captured, policies, resources).match(triplets)
    if matched.calls:
        await store.add_calls(matched.calls, fence=lease.attempt.fence)
    return matched


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
