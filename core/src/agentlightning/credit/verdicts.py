"""Fidelity: check for each call that the recorded tokens are the sampled ones.

A call is *exact* if the engine's counts (``usage``) equal the numbers of ids and logprobs, and the wire
layer, which read the answer in the agent's process, has the same digest and tags as the gateway. Without a
wire span it is *gateway-only*: trained, but unconfirmed. A call whose evidence disagrees is a *mismatch*
and never trained. So is a call that is *cancelled*: the agent read a part of its answer, or none of it,
whatever the gateway had sent by then.

What comes with the attempt's own key (the wire layer's spans, headers) is the agent's word about itself. It
may take a call out of training only for an agent that is trusted (``RolloutConfig.trusted``); otherwise it is
noted beside the gateway's verdict. :func:`disputed` counts such calls either way.

:func:`open_ledger` begins the ledger of a rollout with the calls that this evidence shows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from agentlightning import semconv
from agentlightning.types import Call, Ledger, Record, Span
from agentlightning.types.record import ASKED_SELECTED
from agentlightning.types.tokens import tokens_digest

Kind = Literal["exact", "gateway-only", "wire-only", "mismatch", "cancelled", "no-ids", "supplied"]
REFUSED = "refused-"
"""Beginning of the reason of a call that the gateway refused; the code of its answer follows."""
SAYS_OTHERWISE: Final = "the agent's spans say otherwise"
"""Beginning of the reason of verdicts on calls about which the agent and the gateway disagree."""


class Verdict(NamedTuple):
    """The degree to which the ids of a call are confirmed; ``reason`` is empty for ``exact``."""

    kind: Kind
    reason: str

    @property
    def by_agent(self) -> bool:
        """Whether the agent's own evidence, and not the engine's answer, contradicts the record."""
        return self.reason.startswith(SAYS_OTHERWISE)


def verdict(
    call: Call, wire_spans: Collection[Span], choices: Sequence[Call] = (), *, trusted: bool = True
) -> Verdict:
    """Judge one call against the engine's counts and the wire layer's spans.

    ``wire_spans`` may hold spans of other calls. ``choices``: all choices of the same request, because with
    ``n > 1`` the engine's ``completion_tokens`` is their sum; empty means that this call is the only one.
    ``trusted``: whether contradicting spans make it a ``mismatch``.
    """
    if call.api == "supplied":
        return Verdict("supplied", "the agent handed it in; no engine was asked")
    spans = [span for span in wire_spans if matches_call(span, call)]
    digests = {str(digest) for span in spans if (digest := span.attributes.get(semconv.TOKENS_DIGEST))}
    if call.prompt_ids is None or call.response_ids is None:
        if digests:
            return Verdict("wire-only", "the gateway's record has no token ids, the wire layer's has")
        return Verdict("no-ids", call.error or "the engine gave no token ids")
    contradiction, unchecked = _check_counts(call, choices)
    if contradiction:
        return Verdict("mismatch", contradiction)
    denied: Kind = "mismatch" if trusted else "gateway-only"
    same = digests == {tokens_digest(call.prompt_ids, call.response_ids)}
    if any(_is_broken_off(span, same) for span in wire_spans if _of_request(span, call)):
        what = "the agent did not read the answer to its end"
        return Verdict("cancelled", what) if trusted else Verdict(denied, f"{SAYS_OTHERWISE}: {what}")
    if digests and not same:
        return Verdict(denied, f"{SAYS_OTHERWISE}: they have other token ids than the gateway")
    if differing := _differing_tags(call, spans):
        return Verdict(denied, f"{SAYS_OTHERWISE} on tags: {', '.join(differing)}")
    if unchecked:
        return Verdict("gateway-only", unchecked)
    if not spans:
        return Verdict("gateway-only", "no wire span")
    if not digests:
        return Verdict("gateway-only", "the wire span carries no digest of token ids")
    return Verdict("exact", "")


def verdicts(record: Record) -> dict[str, Verdict]:
    """Return call id → verdict for all calls of a record, with an index instead of comparing all pairs."""
    by_join: dict[tuple[str, str], list[Span]] = {}
    for span in record.wire:
        for key in _join_keys(_response_id(span), span.span_id):
            by_join.setdefault(key, []).append(span)
    requests: dict[tuple[Any, ...], list[Call]] = {}
    for call in record.calls:
        requests.setdefault(_request(call), []).append(call)
    out: dict[str, Verdict] = {}
    for call in record.calls:
        near = [span for key in _join_keys(call.response_id, call.span_id) for span in by_join.get(key, ())]
        trusted = record.rollout.config.trusted
        out[call.call_id] = verdict(call, near, requests[_request(call)], trusted=trusted)
    return out


def disputed(record: Record, verdicts: Mapping[str, Verdict]) -> int:
    """Return the number of calls that the agent's own evidence speaks against: spans with other tokens or
    tags; where the agent is not trusted with that, also the header that asks not to train them, and a record
    of its own without them.
    """
    unheeded = not record.rollout.config.trusted
    named = record.attempt.metadata.get(semconv.SUPPLIED) if record.attempt else None

    def is_denied(call: Call) -> bool:
        left_out = isinstance(named, list) and call.call_id not in named
        return call.asked.get(ASKED_SELECTED) is False or left_out

    return sum(verdicts[c.call_id].by_agent or (unheeded and is_denied(c)) for c in record.calls)


def unrecorded(record: Record) -> list[Span]:
    """Return the wire spans of calls that bypassed the gateway, or that the gateway lost: those without a
    recorded call that the gateway did not refuse.
    """
    return [span for span in _without_record(record) if semconv.REFUSED not in span.attributes]


def refused(record: Record) -> list[Span]:
    """Return the wire spans of calls that the gateway refused: it recorded no call, and answered with an HTTP
    error. A call that the engine refused is recorded.
    """
    return [span for span in _without_record(record) if semconv.REFUSED in span.attributes]


def refusal_of(span: Span) -> str:
    """Return the reason for which the gateway refused a call: the code of its answer."""
    return str(span.attributes[semconv.REFUSED])


def engine_refusal(call: Call) -> str | None:
    """Return the status and code with which the engine refused a recorded call, ``HTTP 4xx …``; else
    ``None``.
    """
    found = re.match(r"HTTP 4\d\d\b[^:]*", call.error or "") if call.status == "error" else None
    return found[0] if found else None


def open_ledger(record: Record, judged: Mapping[str, Verdict]) -> Ledger:
    """Count the calls that were made and recorded.

    A wire span without a record is a call that the gateway refused (left out as ``refused-<code>``), or that
    bypassed the gateway (``not-recorded``). Calls of earlier attempts are left out as ``other-attempt``.
    """
    lost = len(unrecorded(record))
    codes = Counter(f"{REFUSED}{refusal_of(span)}" for span in refused(record))
    earlier = sum(attempt.calls for attempt in record.earlier)
    recorded = len(record.calls) + earlier
    return Ledger(
        rollout_id=record.rollout.rollout_id,
        made=recorded + lost + codes.total(),
        recorded=recorded,
        with_ids=sum(call.has_ids for call in record.calls),
        left_out={
            **{reason: n for reason, n in (("not-recorded", lost), ("other-attempt", earlier)) if n},
            **codes,
        },
        verdicts=dict(Counter(one.kind for one in judged.values())),
        disputed=disputed(record, judged),
    )


def _without_record(record: Record) -> list[Span]:
    known = {key for call in record.calls for key in _join_keys(call.response_id, call.span_id)}
    return [span for span in record.wire if known.isdisjoint(_join_keys(_response_id(span), span.span_id))]


def matches_call(span: Span, call: Call) -> bool:
    """Whether the span belongs to the call: same choice, and same response id or else same caller span."""
    return span.attributes.get(semconv.CHOICE, 0) == call.choice and _of_request(span, call)


def _of_request(span: Span, call: Call) -> bool:
    response_id = _response_id(span)
    if response_id and call.response_id:
        return response_id == call.response_id
    if not span.span_id or span.span_id != call.span_id:
        return False
    return not (span.trace_id and call.trace_id) or span.trace_id == call.trace_id


def _is_broken_off(span: Span, same: bool) -> bool:
    """Whether the agent did not read the answer to its end: it left the stream, or an error ended it.
    ``same``: the agent has all ids of the call; an error was then raised over the whole answer.
    """
    return bool(span.attributes.get(semconv.PARTIAL)) or (span.status == "error" and not same)


def _check_counts(call: Call, choices: Sequence[Call]) -> tuple[str, str]:
    """Return (contradiction, part that could not be checked); both are empty when ids, usage and logprobs
    agree.
    """
    assert call.prompt_ids is not None and call.response_ids is not None
    prompt, response = len(call.prompt_ids), len(call.response_ids)
    siblings = [choice.response_ids for choice in choices or (call,)]
    known = [len(ids) for ids in siblings if ids is not None]
    total = sum(known) if len(known) == len(siblings) else None
    if call.prompt_tokens not in (None, prompt):
        return f"{prompt} prompt ids, but usage says {call.prompt_tokens}", ""
    if call.logprobs is not None and len(call.logprobs) != response:
        return f"{response} response ids, but {len(call.logprobs)} logprobs", ""
    if call.policy_versions is not None and len(call.policy_versions) != response:
        return f"{response} response ids, but {len(call.policy_versions)} policy versions", ""
    if total is not None and call.completion_tokens not in (None, response, total):
        return f"{total} response ids, but usage says {call.completion_tokens}", ""
    if call.prompt_tokens is None or call.completion_tokens is None:
        return "", "the engine reported no usage"
    if call.logprobs is None:
        return "", "the engine gave no logprobs"
    return "", "" if total is not None else "another choice of the request has no ids: usage not checked"


def _differing_tags(call: Call, spans: Iterable[Span]) -> list[str]:
    """Tags on which the wire layer and the gateway disagree; the gateway may have more."""
    differing: set[str] = set()
    for span in spans:
        for name, value in span.attributes.items():
            if name.startswith(semconv.TAG_PREFIX):
                tag = name[len(semconv.TAG_PREFIX) :]
                if call.tags.get(tag) != str(value):
                    differing.add(tag)
    return sorted(differing)


def _response_id(span: Span) -> str | None:
    attributes: Mapping[str, Any] = span.attributes
    value = attributes.get(semconv.RESPONSE_ID)
    return str(value) if value else None


def _join_keys(response_id: str | None, span_id: str | None) -> list[tuple[str, str]]:
    """Keys that join spans to calls (:func:`matches_call` decides)."""
    keys = [("response", response_id)] if response_id else []
    return [*keys, ("span", span_id)] if span_id else keys


def _request(call: Call) -> tuple[Any, ...]:
    """A key that the choices of one request share."""
    return call.attempt_id, call.sequence, call.response_id, call.retry
