"""What agents of Agent Lightning 0.1 to 0.3 return beside a number: their own record, transitions and spans.

Transitions of the agent count before captured calls, and no record is overwritten. A triplet that names a
recorded call *refines* the call: the triplet's reward becomes the call's, and its ids must equal the recorded
ones. Any other triplet becomes a new call with ``api="supplied"``. Recorded calls that no triplet names stay
in the store, and credit leaves them out as ``replaced-by-agent``.

:func:`read_supplied` checks what was returned, where the agent runs. :func:`settle` matches it with the
recorded calls, in the runner's process, when no further call can arrive.

Invariant: a list is accepted as a whole or not at all, and a refusal names the item and the field.
"""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext
from agentlightning.capture.delivery import attempt_trace_id, new_span
from agentlightning.capture.emit import reward_attributes
from agentlightning.capture.records import (
    LARGEST_INT,
    LONGEST_NAME,
    NAME,
    BadRecord,
    check_value,
    checked_mapping,
    error_text,
    reward_number,
    short_repr,
    utf8_text,
    validated,
)
from agentlightning.runner.attempt import attempt_resources
from agentlightning.runner.ending import UNSTORABLE
from agentlightning.runner.outcome import Outcome, read_return
from agentlightning.store.base import Store
from agentlightning.types import (
    LLM,
    AttemptedRollout,
    AttemptStatus,
    Call,
    Resource,
    Span,
)
from agentlightning.types.arrays import Floats, unpack_float32
from agentlightning.types.select import policy_for, with_role
from agentlightning.types.tokens import TokenIds
from agl_v03.triplet import Triplet

T = TypeVar("T")
CLOSE = 1e-3
"""Largest difference between two logprobs of one token that do not conflict."""
_LEAST = -1e30
"""Smallest logprob: logprobs are stored as float32."""
_POSITIVE = 1e-4
"""Largest logprob: engines round."""
_PACKED = (semconv.PROMPT_IDS, semconv.RESPONSE_IDS, semconv.LOGPROBS)
_COLDEST, _HOTTEST = 0.0, 1e3
"""Range of sampling temperatures."""
MOST_TAGS = 1_000
"""Tags of one call, at most."""
LONGEST_METADATA = 16 << 20
"""Bytes of one triplet's metadata or one returned span, at most, as JSON."""


class Supplied(msgspec.Struct):
    """What an agent returned in place of a number."""

    triplets: list[Triplet]
    spans: list[Span]
    """Spans that are no rewards."""
    policies: dict[str, str]
    """:attr:`.AttemptContext.policies`."""


def read_result(result: Any, context: AttemptContext) -> Outcome:
    """Return the outcome of a returned value: a list of triplets and spans is the agent's own record of its
    work, any other value is read as the runner reads it.
    """
    try:
        found = read_supplied(result, context.rollout_id, context.attempt_id)
    except BadRecord as bad:
        return Outcome(AttemptStatus.FAILED, bad.reason)
    except Exception as error:  # the agent's own classes may raise anything while they are read
        what = f"the returned {type(result).__name__} cannot be read: {error_text(error)}"
        return Outcome(AttemptStatus.FAILED, f"bad-record: {what}")
    if found is None:
        return read_return(result)
    triplets, spans = found
    rewards = [span for span in spans if span.name == semconv.REWARD_SPAN]
    others = [span for span in spans if span.name != semconv.REWARD_SPAN]
    supplied = msgspec.to_builtins(Supplied(triplets, others, context.policies))
    return Outcome(AttemptStatus.SUCCEEDED, returned=rewards, supplied=supplied)


def read_supplied(result: Any, rollout_id: str, attempt_id: str) -> tuple[list[Triplet], list[Span]] | None:
    """Return the checked transitions and spans of a returned list, or ``None`` if ``result`` is no such list.

    Empty ids of a span become the attempt's. A span with token ids is a transition too. Raise
    :class:`BadRecord`, which names the item, for a wrong one.
    """
    if not isinstance(result, Sequence) or not any(isinstance(item, Triplet | Span) for item in result):
        return None
    triplets: list[Triplet] = []
    spans: list[Span] = []
    for index, item in enumerate(result):
        if isinstance(item, Triplet):
            triplets.append(_triplet(item, f"item {index}"))
        elif isinstance(item, Span):
            found = _transition(item, f"item {index}")
            triplets += [] if found is None else [_triplet(found, f"item {index}")]
            spans.append(_span(item, (rollout_id, attempt_id), f"item {index}"))
        else:
            raise BadRecord(f"item {index} is a {type(item).__name__}, not a Triplet or a Span")
    return triplets, spans


def _span(span: Span, owner: tuple[str, str], where: str) -> Span:
    """Return the checked span without its packed token ids, which go into the call made of it."""
    for name, own in zip(("rollout_id", "attempt_id"), owner, strict=True):
        if getattr(span, name) not in ("", own):
            raise BadRecord(f"{where}: its {name} is {getattr(span, name)!r}, the attempt's is {own!r}")
    if not isinstance(span.attributes, dict):
        raise BadRecord(f"{where}: attributes is a {type(span.attributes).__name__}, not a dict")
    rest = {name: value for name, value in span.attributes.items() if name not in _PACKED}
    owned = msgspec.structs.replace(span, rollout_id=owner[0], attempt_id=owner[1], attributes=rest)
    try:
        owned = validated(owned)
    except BadRecord as bad:
        raise BadRecord(f"{where}: {bad}", bad.kind) from None
    return _encodable(owned, where, "content")


def _transition(span: Span, where: str) -> Triplet | None:
    """Return the triplet in a span with packed token ids; ``None`` for other spans."""
    a = span.attributes if isinstance(span.attributes, dict) else {}
    if semconv.PROMPT_IDS not in a or semconv.RESPONSE_IDS not in a:
        return None
    try:
        packed = {name: base64.b64decode(a[name], validate=True) for name in _PACKED if name in a}
        prompt = TokenIds.unpacked(packed[semconv.PROMPT_IDS]).tolist()
        response = TokenIds.unpacked(packed[semconv.RESPONSE_IDS]).tolist()
        logprobs = None
        if semconv.LOGPROBS in packed:
            logprobs = list(unpack_float32(packed[semconv.LOGPROBS]))
    except (ValueError, TypeError) as error:
        raise BadRecord(f"{where}: its token ids or logprobs are not packed as base64: {error}") from None
    prefix = semconv.TAG_PREFIX
    tags = {name[len(prefix) :]: str(value) for name, value in a.items() if name.startswith(prefix)}
    return Triplet(prompt_ids=prompt, response_ids=response, logprobs=logprobs, tags=tags)


def _triplet(item: Triplet, where: str) -> Triplet:
    """Return a copy in plain lists, with each field checked."""
    prompt = _ids(item.prompt_ids, f"{where}: prompt_ids")
    response = _ids(item.response_ids, f"{where}: response_ids")
    if item.call_id is not None and (not isinstance(item.call_id, str) or not item.call_id):
        raise BadRecord(f"{where}: call_id is {short_repr(item.call_id)}, not the id of a call")
    refers = item.call_id is not None and not prompt and not response
    if not refers and not (prompt and response):
        empty = "response_ids" if prompt else "prompt_ids"
        raise BadRecord(f"{where}: {empty} is empty; only with call_id may both be left empty")
    return Triplet(
        prompt_ids=prompt,
        response_ids=response,
        reward=None if item.reward is None else reward_number(item.reward, f"{where}: reward"),
        logprobs=_logprobs(item.logprobs, len(response), f"{where}: logprobs"),
        tags=_tags(item.tags, f"{where}: tags"),
        call_id=item.call_id,
        metadata=_metadata(item.metadata, where),
    )


def _listed(values: Any, where: str) -> Sequence[Any]:
    """Return a list as it is and an array of a library as a list."""
    listed = values.tolist() if callable(getattr(values, "tolist", None)) else values
    if not isinstance(listed, list | tuple):
        raise BadRecord(f"{where} is a {type(values).__name__}, not a list")
    return listed


def _ids(values: Any, where: str) -> list[int]:
    listed = _listed(values, where)
    for i, value in enumerate(listed):
        if type(value) is not int or not 0 <= value <= LARGEST_INT:
            raise BadRecord(
                f"{where}[{i}] is {short_repr(value)}: token ids are integers from 0 to {LARGEST_INT}"
            )
    return list(listed)


def _logprobs(values: Any, length: int, where: str) -> list[float] | None:
    if values is None:
        return None
    listed = _listed(values, where)
    if len(listed) != length:
        raise BadRecord(f"{where} has {len(listed)} values for {length} response ids")
    for i, value in enumerate(listed):
        if type(value) not in (int, float) or not _LEAST <= value <= _POSITIVE:
            raise BadRecord(f"{where}[{i}] is {short_repr(value)}: a logprob is a finite number, at most 0")
    return [float(value) for value in listed]


def _tags(tags: Any, where: str) -> dict[str, str]:
    if not isinstance(tags, dict) or not all(isinstance(x, str) for pair in tags.items() for x in pair):
        raise BadRecord(f"{where} is {short_repr(tags)}, not a dict from text to text")
    if len(tags) > MOST_TAGS or any(len(x) > LONGEST_NAME for pair in tags.items() for x in pair):
        raise BadRecord(
            f"{where}: {len(tags)} tags; at most {MOST_TAGS} of {LONGEST_NAME} characters each are taken"
        )
    return {utf8_text(name): utf8_text(value) for name, value in tags.items()}


def _metadata(given: Any, where: str) -> dict[str, Any]:
    """Return the metadata with the fields of a call checked: policy, model, policy_version, sampling."""
    if not isinstance(given, dict):
        raise BadRecord(f"{where}: metadata is a {type(given).__name__}, not a dict")
    for name in ("policy", "model"):
        if given.get(name) is not None:
            check_value(given[name], NAME, f"{where}: metadata[{name!r}]")
    version = given.get("policy_version")
    if version is not None and (type(version) is not int or not 0 <= version <= LARGEST_INT):
        raise BadRecord(
            f"{where}: metadata['policy_version'] is {short_repr(version)}, not an integer from 0 to "
            f"{LARGEST_INT}"
        )
    sampling = checked_mapping(given.get("sampling"), f"{where}: metadata['sampling']")
    temperature = sampling.get("temperature", 1.0)
    if type(temperature) not in (int, float) or not _COLDEST <= temperature <= _HOTTEST:
        raise BadRecord(
            f"{where}: metadata['sampling']['temperature'] is {short_repr(temperature)}, not from "
            f"{_COLDEST:g} to {_HOTTEST:g}"
        )
    return _encodable(given, where, "metadata")


def _encodable(value: T, where: str, what: str) -> T:
    """Return the value as JSON carries it, so that later readers get the same in every process."""
    try:
        encoded = msgspec.json.encode(value)
        if len(encoded) > LONGEST_METADATA:
            raise BadRecord(
                f"{where}: its {what} takes {len(encoded)} bytes as JSON; at most {LONGEST_METADATA} may"
            )
        return msgspec.json.decode(encoded, type=type(value))
    except BadRecord:
        raise
    except Exception as error:  # objects of agents may raise anything while they are encoded
        raise BadRecord(f"{where}: its {what} has no valid JSON form: {error_text(error, 300)}") from None


async def settle(
    outcome: Outcome, lease: AttemptedRollout, store: Store, spans: list[Span], counts: Counter[str]
) -> Outcome:
    """Match the returned transitions with the recorded calls, store those of the agent's own, and add the
    returned spans to the attempt's ``spans``. Transitions that contradict the recorded calls are counted, and
    fail the attempt.
    """
    if outcome.supplied is None:
        return outcome
    supplied = msgspec.convert(outcome.supplied, Supplied)
    ids = (lease.rollout.rollout_id, lease.attempt.attempt_id)
    if supplied.triplets:
        try:
            if not lease.rollout.config.trusted:
                raise BadRecord(
                    "it returned transitions, which count for an agent that is trusted: set agent.trusted"
                )
            resources = await attempt_resources(store, lease.rollout)
            recorded = [call for call in await store.query_calls(*ids) if call.api != "supplied"]
            matched = MatchedTransitions(lease, recorded, supplied.policies, resources)
            matched.match(supplied.triplets)
            if matched.calls:
                await store.add_calls(matched.calls, fence=lease.attempt.fence)
        except UNSTORABLE as error:
            bad = error
            if not isinstance(bad, BadRecord):
                bad = BadRecord(f"it cannot be stored: {error_text(error)}")
            counts["supplied-refused"] += 1
            await store.count("refused", "supplied-conflict", rollout_id=ids[0], attempt_id=ids[1])
            return Outcome(AttemptStatus.FAILED, bad.reason, returned=outcome.returned)
        outcome.metadata[semconv.SUPPLIED] = matched.named
        outcome.returned += matched.rewards
    spans += supplied.spans
    return outcome


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
