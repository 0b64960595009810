"""Which recorded calls may be trained, before any reward is looked at.

Every call gets one reason or none: the first that applies in the order of :func:`untrainable_reasons` is in
the ledger. ``superseded``, ``error``, ``over-length`` and ``cancelled`` calls are not *live*: the agent
never went on from their answer, so no rule sees them.

Some calls were sampled from another distribution than the run's policy: under a grammar, with a forced tool,
or with a temperature, ``top_p`` or penalty of their own. If the engine reports the probabilities that the
tokens were really drawn with (``logprobs_mode: processed``), the loss can weigh each token by the probability
under the run's policy over that one, at most ``Recipe.off_policy_cap``: truncated importance sampling (arXiv
1802.01561). Otherwise the call is left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from agentlightning import semconv
from agentlightning.credit.groups import call_order
from agentlightning.credit.verdicts import Verdict
from agentlightning.types import Call, Recipe, Record
from agentlightning.types.record import ASKED_SELECTED

OFF_POLICY = "off-policy-sampling"
"""The ledger's reason, and ``Call.masked`` of a call that the gateway knows to be sampled otherwise."""
_NEUTRAL = MappingProxyType(
    {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
     "frequency_penalty": 0.0, "repetition_penalty": 1.0}
)  # fmt: skip
"""Sampling values that leave the model's own distribution as it is."""


def is_weighed(call: Call, recipe: Recipe) -> bool:
    """Whether the call is trained by importance weights: it was sampled otherwise than the run's policy, and
    the probabilities of its tokens are recorded.
    """
    knows = call.logprobs_mode == "processed" and recipe.off_policy_cap is not None
    return knows and _is_off_policy(call, recipe)


def is_unweighable(call: Call, recipe: Recipe) -> bool:
    """Whether the call was sampled otherwise than the run's policy and cannot be weighed.

    A temperature of its own alone is no reason: without processed logprobs, a row is trained at the
    temperature at which it was sampled. Raw logprobs are of the model's own distribution, so they are those
    of sampling only if nothing shaped it.
    """
    if is_weighed(call, recipe):
        return False
    if call.masked == OFF_POLICY:
        return True
    if call.logprobs_mode == "raw":
        return bool(_differing(call, _NEUTRAL))
    return bool(_differing(call, _of(recipe)) - {"temperature"})


def weighed_calls(calls: Iterable[Call], recipe: Recipe) -> frozenset[str]:
    """Return the ids of the calls that are trained by importance weights."""
    return frozenset(call.call_id for call in calls if is_weighed(call, recipe))


def _is_off_policy(call: Call, recipe: Recipe) -> bool:
    return call.masked == OFF_POLICY or bool(_differing(call, _of(recipe)))


def _of(recipe: Recipe) -> dict[str, Any]:
    """The sampling values of the run's policy."""
    own = {"temperature": recipe.temperature, "top_p": recipe.top_p, "top_k": max(0, recipe.top_k)}
    return {**_NEUTRAL, **own}


def _differing(call: Call, wanted: MappingProxyType[str, Any] | dict[str, Any]) -> set[str]:
    """The names of the call's sampling values that are not the wanted ones. A value that it does not state
    is that of the run.
    """
    stated = {name: value for name in wanted if (value := call.sampling.get(name)) is not None}
    if stated.get("top_k") == -1:  # -1 and 0 both switch it off
        stated["top_k"] = 0
    return {name for name, value in stated.items() if value != wanted[name]}


Versions = int | Mapping[str, int | None] | None
"""Policy version about to be trained: one number, or one for each named policy; ``None``: unknown."""

OVER_LENGTH = "over-length"
MISMATCH_BY_AGENT = "mismatch-by-agent"
"""The agent's own spans contradict the gateway's record, and the agent is trusted."""
REFUSED_MASKS = (OVER_LENGTH, "budget")
"""``Call.masked`` of calls that the gateway refused before an engine saw them."""
NOT_LIVE = frozenset(
    {"other-attempt", "superseded", "error", "cancelled", *REFUSED_MASKS, "replaced-by-agent"}
)
"""Reasons of calls whose answer the agent never used."""
ROUNDING = 1e-4
"""The largest logprob above 0 that rounding in an engine can explain."""


def untrainable_reasons(
    record: Record, verdicts: Mapping[str, Verdict], recipe: Recipe, *, version: Versions
) -> dict[str, str]:
    """Return call id → why the call cannot be trained; trainable calls are absent.

    ``version``: the policy version about to be trained; a call more than the recipe's ``max_staleness``
    versions older is ``stale``, and one that claims a later version is ``version-ahead``. With ``None``, and
    for calls without a version, age is not checked. If versions are given by name, each call is checked
    against its own policy's; a call of another policy is ``frozen-policy``: the run does not train it.
    """
    superseded, attempt = superseded_calls(record), record.attempt
    supplied = _supplied(record)
    reasons: dict[str, str] = {}
    for call in record.calls:
        trained = version_of(version, call.policy)
        judged = verdicts[call.call_id]
        age = 0 if trained is None or call.policy_version is None else trained - call.policy_version
        checks = (
            (attempt is not None and call.attempt_id != attempt.attempt_id, "other-attempt"),
            (call.call_id in superseded, "superseded"),
            (call.status != "ok", call.masked if call.masked in REFUSED_MASKS else call.status),
            (verdicts[call.call_id].kind == "cancelled", "cancelled"),
            (supplied is not None and call.call_id not in supplied, "replaced-by-agent"),
            (isinstance(version, Mapping) and call.policy not in version, "frozen-policy"),
            (not call.selected, _not_selected(call)),
            (call.masked and not is_weighed(call, recipe), call.masked),
            (not call.has_ids, "no-ids"),
            (not call.response_ids, "empty-response"),
            (not call.prompt_ids, "empty-prompt"),
            (judged.kind == "mismatch", MISMATCH_BY_AGENT if judged.by_agent else "mismatch"),
            (call.logprobs is None, "no-logprobs"),
            (not _are_logprobs(call.logprobs or ()), "bad-logprobs"),
            (is_unweighable(call, recipe) or not _has_distribution(call), OFF_POLICY),
            (age > recipe.max_staleness, "stale"),
            (age < 0, "version-ahead"),
        )
        if reason := next((reason for applies, reason in checks if applies), None):
            reasons[call.call_id] = reason
    return reasons


def _supplied(record: Record) -> Collection[str] | None:
    """Return the ids of the calls that the record of a trusted agent names, or ``None`` if there is none."""
    if record.attempt is None or not record.rollout.config.trusted:
        return None
    found = record.attempt.metadata.get(semconv.SUPPLIED)
    return found if isinstance(found, list) else None


def _not_selected(call: Call) -> str:
    """Return who left the call out: ``select`` of the run, or the agent by its request."""
    return "not-selected-by-agent" if call.asked.get(ASKED_SELECTED) is False else "not-selected"


def version_of(version: Versions, policy: str) -> int | None:
    """Return the version of ``policy`` that is about to be trained."""
    return version.get(policy) if isinstance(version, Mapping) else version


def superseded_calls(record: Record) -> set[str]:
    """Return the calls that the SDK retried: another call has the same caller span and a higher retry
    count. Both are headers of the agent's: one that is not trusted takes back no call that was answered.
    """
    trusted = record.rollout.config.trusted
    newest: dict[tuple[str, str | None], int] = {}
    for call in record.calls:
        if call.span_id:
            key = (call.span_id, call.trace_id)
            newest[key] = max(newest.get(key, 0), call.retry)
    return {
        c.call_id
        for c in record.calls
        if c.span_id and c.retry < newest[c.span_id, c.trace_id] and (trusted or c.status != "ok")
    }


def live_record(record: Record, reasons: Mapping[str, str]) -> Record:
    """Return the record for a credit rule: live calls in order, each untrainable call with its reason in
    ``masked``, which is empty for the others."""
    live = sorted((c for c in record.calls if reasons.get(c.call_id) not in NOT_LIVE), key=call_order)
    calls = [
        call
        if call.masked == (why := reasons.get(call.call_id))
        else msgspec.structs.replace(call, masked=why)
        for call in live
    ]
    return msgspec.structs.replace(record, calls=calls)


def _are_logprobs(values: Sequence[float]) -> bool:
    """Whether all are finite and at most 0, but for rounding. Of NaN and infinity the sum is neither finite
    nor comparable.
    """
    return not values or (-math.inf < sum(values) and max(values) <= ROUNDING)


def _has_distribution(call: Call) -> bool:
    """Whether its temperature is above 0: at 0 there is no distribution to take a gradient of."""
    temperature = call.sampling.get("temperature")
    if temperature is None:
        return True
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    return number and 0.0 < temperature < math.inf
