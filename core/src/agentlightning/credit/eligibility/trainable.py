"""Which recorded calls may be trained, before any reward is looked at.

Every call gets one reason or none; the first that applies, in the order of :func:`untrainable_reasons`, is
in the ledger. ``superseded``, ``error``, ``over-length`` and ``cancelled`` calls are not *live*: the agent
never went on from their answer, so no rule sees them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from agentlightning import semconv
from agentlightning.credit.eligibility.verdicts import Verdict
from agentlightning.types import Call, Record

Versions = int | Mapping[str, int | None] | None
"""Policy version about to be trained: one number, or one for each named policy; ``None``: unknown."""

OVER_LENGTH = "over-length"
NOT_LIVE = frozenset({"other-attempt", "superseded", "error", "cancelled", OVER_LENGTH, "replaced-by-agent"})
"""Reasons of calls whose answer the agent never used."""
ROUNDING = 1e-4
"""The largest logprob above 0 that rounding in an engine can explain."""


def untrainable_reasons(
    record: Record, verdicts: Mapping[str, Verdict], *, max_staleness: int, version: Versions
) -> dict[str, str]:
    """Return call id → why the call cannot be trained; trainable calls are absent.

    ``version``: the policy version about to be trained; a call more than ``max_staleness`` versions older is
    ``stale``, and one that claims a later version is ``version-ahead``. With ``None``, and for calls
    without a version, age is not checked. If versions are given by name, each call is checked against its
    own policy's; a call of another policy is ``frozen-policy``: the run does not train it.
    """
    superseded = superseded_calls(record)
    reasons: dict[str, str] = {}
    for call in record.calls:
        frozen = isinstance(version, Mapping) and call.policy not in version
        reason = _reason(call, record, verdicts[call.call_id], superseded, frozen)
        mine = version_of(version, call.policy)
        if not reason and mine is not None and call.policy_version is not None:
            reason = "stale" if mine - call.policy_version > max_staleness else ""
            reason = "version-ahead" if call.policy_version > mine else reason
        if reason:
            reasons[call.call_id] = reason
    return reasons


def version_of(version: Versions, policy: str) -> int | None:
    """Return the version of ``policy`` that is about to be trained."""
    return version.get(policy) if isinstance(version, Mapping) else version


def superseded_calls(record: Record) -> set[str]:
    """Return the calls that the SDK retried: another call has the same caller span and a higher retry
    count.
    """
    newest: dict[tuple[str, str | None], int] = {}
    for call in record.calls:
        if call.span_id:
            key = (call.span_id, call.trace_id)
            newest[key] = max(newest.get(key, 0), call.retry)
    return {c.call_id for c in record.calls if c.span_id and c.retry < newest[c.span_id, c.trace_id]}


def live_record(record: Record, reasons: Mapping[str, str]) -> Record:
    """Return the record for a credit rule: live calls in order, each untrainable call with its reason in
    ``masked``."""
    live = sorted((c for c in record.calls if reasons.get(c.call_id) not in NOT_LIVE), key=call_order)
    calls = [
        msgspec.structs.replace(call, masked=reasons[call.call_id]) if call.call_id in reasons else call
        for call in live
    ]
    return msgspec.structs.replace(record, calls=calls)


def call_order(call: Call) -> tuple[int, int, str]:
    """Sort key of calls within an attempt: by request, then choice."""
    return call.sequence, call.choice, call.call_id


def _reason(call: Call, record: Record, verdict: Verdict, superseded: set[str], frozen: bool) -> str:
    """Why this call cannot be trained whatever its age; empty if it can."""
    if record.attempt is not None and call.attempt_id != record.attempt.attempt_id:
        return "other-attempt"
    if call.call_id in superseded:
        return "superseded"
    if call.status != "ok":
        return OVER_LENGTH if call.masked == OVER_LENGTH else call.status
    if record.attempt and call.call_id not in record.attempt.metadata.get(semconv.SUPPLIED, [call.call_id]):
        return "replaced-by-agent"
    if frozen:
        return "frozen-policy"
    if not call.selected:
        return "not-selected"
    if call.masked:
        return call.masked
    if call.prompt_ids is None or call.response_ids is None:
        return "no-ids"
    if not call.response_ids:
        return "empty-response"
    if not call.prompt_ids:
        return "empty-prompt"
    if verdict.kind == "mismatch":
        return "mismatch"
    if call.logprobs is None:
        return "no-logprobs"
    if not all(-math.inf < logprob <= ROUNDING for logprob in call.logprobs):
        return "bad-logprobs"
    return "" if _has_distribution(call) else "off-policy-sampling"


def _has_distribution(call: Call) -> bool:
    """Whether its temperature is above 0: at 0 there is no distribution to take a gradient of."""
    temperature = call.sampling.get("temperature")
    if temperature is None:
        return True
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return number and 0.0 < temperature < math.inf
