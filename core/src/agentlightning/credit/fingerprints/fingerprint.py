"""Seals: what a step trained of each rollout, as hashes logged at training time.

A seal is small and says enough to find out later, from the store alone, whether anything that a step was
trained on has changed, and what: the calls, the rewards, or, with both the same, the code that turned them
into rows. :func:`seal` makes the seals of a batch; ``agl verify`` makes them again and compares.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from agentlightning.credit.eligibility.failure import failure_of
from agentlightning.credit.fingerprints.chain import canonical, plain
from agentlightning.credit.fingerprints.digest import canonical_order, int_bytes, real_bytes, text_bytes
from agentlightning.credit.scoring.rewards import resolve
from agentlightning.semconv import CHOICE, RESPONSE_ID, SUPPLIED, TAG_PREFIX, TOKENS_DIGEST
from agentlightning.types import Batch, Call, Recipe, Record, Reward, RolloutFingerprint, Row, Span
from agentlightning.types.aliases import RECIPE, stored_name
from agentlightning.types.failure import FailureAction, FailureTable


def fingerprint_rollouts(
    batch: Batch, records: Sequence[Record], *, run_id: str, step: int, policy: str, version: int | None
) -> list[RolloutFingerprint]:
    """One seal for each record of the step, rows or not, in the order of the records."""
    rows: dict[str, list[Row]] = {}
    for row in canonical_order(batch.rows):
        rows.setdefault(row.rollout_id, []).append(row)
    ledgers = {ledger.rollout_id: ledger for ledger in batch.ledgers}
    out: list[RolloutFingerprint] = []
    for record in records:
        mine = rows.get(record.rollout.rollout_id, [])
        ledger = ledgers[record.rollout.rollout_id]
        one = fingerprint_record(record, run_id=run_id, step=step, policy=policy, version=version)
        one.rows = len(mine)
        one.tokens_digest = _digest(part for row in mine for part in _tokens(row))
        one.advantages_digest = _digest(real_bytes(row.advantages) for row in mine)
        one.weights_digest = _digest(real_bytes(row.weights) for row in mine)
        one.ledger = {"made": ledger.made, "trained": ledger.trained, **ledger.left_out}
        out.append(one)
    return out


def fingerprint_record(
    record: Record, *, run_id: str, step: int, policy: str, version: int | None
) -> RolloutFingerprint:
    """The seal of what a rollout was, without rows: all that there is to seal of an evaluation's."""
    parts = {call.call_id: call_part_digests(call) for call in record.calls}
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
        calls_digest=_digest(part for call in record.calls for part in _call(call)),
        parts={name: _short(held) for name, held in parts.items()},
        rewards_digest=_digest(part for reward in record.rewards for part in _reward(reward)),
        inputs={name: _digest([_json(value)]) for name, value in inputs.items()},
    )


def _digest(parts: Iterable[bytes]) -> str:
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def terms_digest(recipe: Recipe, failure: FailureTable) -> str:
    """Of what a step is credited by: the recipe's fields that are not their defaults, and the table's kinds
    that lead to anything.
    """
    table = {
        kind: [action.retry, action.reward] for kind, action in failure.items() if action != FailureAction()
    }
    fields = {stored_name(name, RECIPE): value for name, value in recipe.uses().items()}
    return _digest([_json([recipe.name, fields, table])])


def _inputs(record: Record) -> dict[str, object]:
    """What credit reads of a record beside its calls and rewards."""
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
"""Fields of an attempt that say how it went on its way."""


def _execution(record: Record) -> dict[str, object] | None:
    """Facts of a settled attempt; ``None`` for a cancelled rollout, whose attempt may end after it."""
    if record.attempt is None or record.rollout.status not in ("succeeded", "failed"):
        return None
    return {name: held for name, held in plain(record.attempt).items() if name not in _TRANSIENT}


CALL_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "token ids": ("prompt_ids", "response_ids"),
        "logprobs": ("logprobs",),
        "policy version": ("policy", "policy_version"),
        "tags": ("tags",),
        "sampling": ("sampling", "allowed"),
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
_ARRAYS = frozenset({"token ids", "logprobs"})


def call_part_digests(call: Call) -> dict[str, str]:
    """A digest of each part of a call, by which it is said what of it was changed."""
    return {
        part: _digest([canonical([getattr(call, name) for name in names])])
        if part not in _ARRAYS
        else _digest(_array(getattr(call, name)) for name in names)
        for part, names in _FIELDS.items()
    }


def _array(values: Sequence[float] | None) -> bytes:
    """Ids or logprobs as bytes: there are many of them."""
    return b"-" if values is None else array("d", values).tobytes() + b"."


def _short(parts: Mapping[str, str]) -> dict[str, str]:
    return {part: value[:12] for part, value in parts.items()}


def _compared_attributes(span: Span) -> dict[str, object]:
    """What verdicts compare of a wire span."""
    return {
        name: value
        for name, value in span.attributes.items()
        if name in (TOKENS_DIGEST, CHOICE, RESPONSE_ID) or name.startswith(TAG_PREFIX)
    }


def _json(value: object) -> bytes:
    return text_bytes(json.dumps(value, sort_keys=True, default=str))


def _call(call: Call) -> Iterable[bytes]:
    """What credit reads of a call. Texts are not trained on: the ids are."""
    yield text_bytes(call.call_id)
    yield struct.pack("<qqq", call.sequence, call.choice, call.retry)
    for ids in (call.prompt_ids, call.response_ids):
        yield b"-" if ids is None else int_bytes(ids)
    yield b"-" if call.logprobs is None else real_bytes(call.logprobs)
    rest = [
        call.policy, call.policy_version, call.selected, call.masked, call.status,
        call.span_id, call.trace_id, call.sampling, call.allowed, call.tags,
        call.prompt_tokens, call.completion_tokens,
        call.api, call.response_id, call.edited.get("over_length"),
    ]  # fmt: skip
    yield text_bytes(json.dumps(rest, sort_keys=True))


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
