"""Fingerprints: hashes of the training data of each rollout of a step, logged at training time.

A fingerprint is small, and still shows later, from the store alone, whether the training data of a step has
changed and where: in the calls, in the rewards, or, if both are equal, in the code that made rows of them.
``agl verify`` computes fingerprints again and compares.

Of each call the fields that credit reads are hashed, and each part of the call. The beginning of a prompt,
and each message and value of a request, is hashed once for all calls that share it, so that the cost of a
rollout's fingerprint grows with its tokens.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from agentlightning.credit.digest import (
    canonical,
    canonical_order,
    constraint_bytes,
    digest,
    digest_of,
    int_bytes,
    plain,
    real_bytes,
    text_bytes,
)
from agentlightning.credit.rewards import resolve
from agentlightning.credit.rollout_reward import failure_of
from agentlightning.semconv import CHOICE, RESPONSE_ID, SUPPLIED, TAG_PREFIX, TOKENS_DIGEST
from agentlightning.types import Batch, Call, Recipe, Record, Reward, RolloutFingerprint, Row, Span
from agentlightning.types.failure import FailureAction, FailureTable
from agentlightning.types.tokens import as_ids, shared_buffer

CALL_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "token ids": ("prompt_ids", "response_ids"),
        "logprobs": ("logprobs",),
        "policy version": ("policy", "policy_version", "policy_versions"),
        "tags": ("tags",),
        "sampling": ("sampling", "allowed", "grammar", "logprobs_mode"),
        "request": ("request", "asked", "model"),
        "response": ("response", "finish_reason", "error"),
        "usage": ("prompt_tokens", "completion_tokens"),
        "times": ("start_time", "end_time"),
    }
)
"""Part of a call → its fields; all others are its ``identity or fate``."""
OTHER_PART = "identity or fate"
_NAMED = frozenset(name for names in CALL_PARTS.values() for name in names)
_FIELDS = {**CALL_PARTS, OTHER_PART: tuple(name for name in Call.__struct_fields__ if name not in _NAMED)}


class CallDigests:
    """Digests of the calls of one record."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        """Messages and values of requests, by identity: calls that were read from a store share them."""

    def parts(self, call: Call) -> dict[str, str]:
        """Return a digest of each part, to tell which part of a call was changed."""
        return {part: digest_of(self._part(call, part)) for part in _FIELDS}

    def read(self, call: Call) -> Iterable[bytes]:
        """Yield the fields that credit reads. Texts are not among them: the ids are trained."""
        yield text_bytes(call.call_id)
        yield struct.pack("<qqq", call.sequence, call.choice, call.retry)
        yield from self._ids(call)
        yield b"-" if call.logprobs is None else real_bytes(call.logprobs)
        rest = [
            call.policy, call.policy_version, call.selected, call.masked, call.status,
            call.span_id, call.trace_id, call.sampling, call.allowed, call.tags,
            call.prompt_tokens, call.completion_tokens,
            call.api, call.response_id, call.edited.get("over_length"),
            call.grammar, call.logprobs_mode, call.policy_versions,
        ]  # fmt: skip
        yield text_bytes(json.dumps(plain(rest), sort_keys=True))

    def _part(self, call: Call, part: str) -> Iterable[bytes]:
        if part == "token ids":
            return self._ids(call)
        values = [getattr(call, name) for name in _FIELDS[part]]
        if part == "logprobs":
            return map(_array, values)
        if part == "request" and call.request is not None:
            values[0] = {name: self._in_request(name, value) for name, value in call.request.items()}
        return [canonical(values)]

    def _in_request(self, name: str, value: Any) -> Any:
        """A value of a request, with digests in place of messages, lists and objects."""
        if name == "messages" and isinstance(value, list):
            return [self._value(message) for message in value]
        return self._value(value)

    def _value(self, value: Any) -> Any:
        if not isinstance(value, list | dict):
            return value
        if id(value) not in self._known:
            self._known[id(value)] = digest(value)
        return self._known[id(value)]

    def _ids(self, call: Call) -> Iterable[bytes]:
        """The ids of prompt and response; digests of the prompt, and of prompt + response."""
        if call.prompt_ids is None or call.response_ids is None:
            for ids in (call.prompt_ids, call.response_ids):
                yield b"-" if ids is None else int_bytes(ids)
        else:
            data, own, whole = shared_buffer(as_ids(call.prompt_ids), call.response_ids)
            yield struct.pack("<qq", own, whole) + data.digest(own) + data.digest(whole)


def _array(values: Sequence[float] | None) -> bytes:
    """Encode ids or logprobs, of which there are many, without JSON."""
    return b"-" if values is None else array("d", values).tobytes() + b"."


def fingerprint_rollouts(
    batch: Batch, records: Sequence[Record], *, run_id: str, step: int, policy: str, version: int | None
) -> list[RolloutFingerprint]:
    """Return one fingerprint for each record of the step, with rows or without, in the records' order. The
    rest is part of each.
    """
    make = partial(fingerprint_record, run_id=run_id, step=step, policy=policy, version=version)
    return add_rows(map(make, records), batch, policy=policy, version=version)


def add_rows(
    fingerprints: Iterable[RolloutFingerprint], batch: Batch, *, policy: str, version: int | None
) -> list[RolloutFingerprint]:
    """Return the fingerprints of rollouts with the digests of their rows of ``policy``, which were built for
    ``version``.
    """
    rows: dict[str, list[Row]] = {}
    for row in canonical_order(batch.rows):
        rows.setdefault(row.rollout_id, []).append(row)
    ledgers = {ledger.rollout_id: ledger for ledger in batch.ledgers}
    out: list[RolloutFingerprint] = []
    for one in fingerprints:
        mine, ledger = rows.get(one.rollout_id, []), ledgers[one.rollout_id]
        digests = {
            "tokens_digest": digest_of(part for row in mine for part in _tokens(row)),
            "advantages_digest": digest_of(real_bytes(row.advantages) for row in mine),
            "weights_digest": digest_of(real_bytes(row.weights) for row in mine),
        }
        counts = {"made": ledger.made, "trained": ledger.trained, **ledger.left_out}
        known: dict[str, Any] = {"policy": policy, "version": version, "rows": len(mine), "ledger": counts}
        out.append(msgspec.structs.replace(one, **known, **digests))
    return out


def fingerprint_record(
    record: Record, *, run_id: str, step: int, policy: str, version: int | None
) -> RolloutFingerprint:
    """Return the fingerprint of a rollout without its rows: that of an evaluation's rollout is complete."""
    digests = CallDigests()
    parts = {call.call_id: digests.parts(call) for call in record.calls}
    inputs = {**_inputs(record), "content": [[name, held] for name, held in parts.items()]}
    return RolloutFingerprint(
        run_id=run_id,
        step=step,
        rollout_id=record.rollout.rollout_id,
        policy=policy,
        attempt_id=record.attempt.attempt_id if record.attempt else None,
        version=version,
        status=str(record.rollout.status),
        reward=resolve(record).final,
        failure=failure_of(record) or "",
        calls=len(record.calls),
        calls_digest=digest_of(part for call in record.calls for part in digests.read(call)),
        parts={call: {part: one[:12] for part, one in held.items()} for call, held in parts.items()},
        rewards_digest=digest_of(part for reward in record.rewards for part in _reward(reward)),
        inputs={name: digest_of([_json(value)]) for name, value in inputs.items()},
    )


def terms_digest(recipe: Recipe, failure: FailureTable) -> str:
    """Return a digest of the recipe and failure table of a step: the recipe's fields that are not at their
    defaults, and the table's kinds that have an action.
    """
    table = {
        kind: [action.retry, action.reward] for kind, action in failure.items() if action != FailureAction()
    }
    fields = recipe.uses()
    return digest_of([_json([recipe.name, fields, table])])


def _inputs(record: Record) -> dict[str, object]:
    """The fields of a record that credit reads beside calls and rewards, and the facts of its execution."""
    rollout, attempt = record.rollout, record.attempt
    return {
        "attempts": [[e.attempt_id, str(e.status), e.reason, e.calls] for e in record.earlier],
        "group": [rollout.group_id, rollout.task_id, rollout.sample],
        "supplied": attempt.metadata.get(SUPPLIED) if attempt else None,
        "wire": [
            [span.span_id, span.trace_id, span.status, _compared_attributes(span)] for span in record.wire
        ],
        "rollout": {k: v for k, v in plain(rollout).items() if k not in _COMPARED_APART},
        "execution": _execution(record),
        "emitted": plain(record.rewards),
    }


_COMPARED_APART = frozenset({"status", "group_id", "task_id", "sample"})
"""Fields of a rollout that are compared by themselves."""
_TRANSIENT = frozenset({"last_heartbeat_time", "status"})
"""Fields of an attempt that change while it runs."""


def _execution(record: Record) -> dict[str, object] | None:
    """Facts of a settled attempt; ``None`` for a cancelled rollout, whose attempt may end after it."""
    if record.attempt is None or record.rollout.status not in ("succeeded", "failed"):
        return None
    return {name: held for name, held in plain(record.attempt).items() if name not in _TRANSIENT}


def _compared_attributes(span: Span) -> dict[str, object]:
    """The attributes of a wire span that verdicts compare."""
    return {
        name: value
        for name, value in span.attributes.items()
        if name in (TOKENS_DIGEST, CHOICE, RESPONSE_ID) or name.startswith(TAG_PREFIX)
    }


def _json(value: object) -> bytes:
    return text_bytes(json.dumps(value, sort_keys=True, default=str))


def _reward(reward: Reward) -> Iterable[bytes]:
    yield struct.pack("<d", reward.value)
    rest = [reward.name, reward.call_id, reward.span_id, reward.agent, reward.final, reward.attributes]
    yield text_bytes(json.dumps(rest, sort_keys=True, default=str))


def _tokens(row: Row) -> Iterable[bytes]:
    yield text_bytes(row.policy)
    yield int_bytes(row.token_ids)
    yield int_bytes(row.mask)
    yield real_bytes(row.logprobs)
    yield int_bytes(row.versions)
    yield struct.pack("<d", row.temperature)
    yield text_bytes(json.dumps(sorted(row.allowed.items())))
    yield from constraint_bytes(row)
