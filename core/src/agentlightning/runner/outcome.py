"""How an attempt ended: status, kind of failure, reward, and what the agent handed in; read from what the
agent raised or returned.

A failure is not a reward of 0: an attempt that raised, timed out or returned nonsense has no reward. The
``reason`` of a failure begins with its kind (:mod:`agentlightning.types.failure`).

An agent returns a number, or a list of its own transitions and spans. Transitions of the agent count before
captured calls, and no record is overwritten. A triplet that names a recorded call *refines* the call: the
triplet's reward becomes the call's, and its ids must equal the recorded ones. Any other triplet becomes a new
call with ``api="supplied"``. Recorded calls that no triplet names stay in the store, and credit leaves them
out as ``replaced-by-agent``.

Invariant: a list is accepted as a whole or not at all, and a refusal names the item and the field.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

import msgspec

from agentlightning import semconv
from agentlightning.capture.records import (
    LARGEST_INT,
    LONGEST_NAME,
    BadRecord,
    checked_mapping,
    checked_text,
    error_text,
    reward_number,
    short_repr,
    utf8_text,
    validated,
)
from agentlightning.decorator.reward_function import BadReward
from agentlightning.gateway.answer import is_over_length
from agentlightning.runner.tracebacks import format_traceback
from agentlightning.types import AttemptStatus, Span, Triplet, UsageError
from agentlightning.types.arrays import unpack_float32, unwrap_scalar
from agentlightning.types.tokens import TokenIds

T = TypeVar("T")
RAISED = "agent-raised"
TOO_LONG_STATUS = (400, 413, 422)
"""HTTP statuses with which engines refuse a prompt that does not fit."""
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


def read_return(result: Any, rollout_id: str, attempt_id: str) -> Outcome:
    """Return the outcome of a returned value: a number is the final reward, ``None`` means that rewards were
    emitted or are missing, a list holds the agent's own transitions and spans. Any other value is a failure.
    """
    try:
        supplied = read_supplied(result, rollout_id, attempt_id)
        if supplied is None:
            return Outcome(AttemptStatus.SUCCEEDED, reward=_final_reward(result))
        triplets, spans = supplied
        rewards = [span for span in spans if span.name == semconv.REWARD_SPAN]
        others = [span for span in spans if span.name != semconv.REWARD_SPAN]
        return Outcome(AttemptStatus.SUCCEEDED, triplets=triplets, returned=rewards, spans=others)
    except BadRecord as bad:
        reason = bad.reason
    except Exception as error:  # the agent's own classes may raise anything while they are read
        reason = f"bad-record: the returned {type(result).__name__} cannot be read: {error_text(error)}"
    return Outcome(AttemptStatus.FAILED, reason)


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
    empty = isinstance(value, Sequence) and not isinstance(value, str | bytes) and not value
    if value is None or empty:
        return None
    expected = "return a number, None (after emit_reward), or spans"
    raise BadRecord(f"the agent returned {kind}; {expected}", "bad-reward")


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
            checked_text(given[name], f"{where}: metadata[{name!r}]")
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
