"""The calls of a request: one :class:`Call` for each choice of its answer, made and stored.

Invariants: ids, logprobs and counts are the engine's own, never repaired. On return of
:meth:`CallWriter.write` calls are durable, and they are written even if their request is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agentlightning.gateway.answer import EngineAnswer, EngineChoice
from agentlightning.gateway.attempts import OpenAttempts
from agentlightning.gateway.errors import CallFailure, RequestRefused, store_failed
from agentlightning.gateway.media import MEDIA
from agentlightning.gateway.metrics import OVER_LENGTH, OVER_LENGTH_FIELD, Metrics
from agentlightning.gateway.request import ModelRequest
from agentlightning.gateway.sampling import check_echo, is_allowed
from agentlightning.log_limit import limited
from agentlightning.specs import CallGuard
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import Call
from agentlightning.types.record import ASKED_SELECTED

log = limited(__name__)
OUTSIDE_VOCABULARY = "outside-vocabulary"
"""``Call.masked`` of a call with token ids that the policy does not have."""


def call_of(request: ModelRequest, choice: int = 0, **fields: Any) -> Call:
    """One call of a request; ``fields`` say how it ended."""
    info, caller, api, sampling = request.attempt.info, request.caller, request.api, request.sampling
    edited = fields.pop("edited", request.edited)
    if api.translated:
        edited = {"api": api.name, **api.noted(request.agent_body), **edited}
    fields = {
        "masked": _masked(request, sampling.masked),
        "logprobs_mode": request.route.logprobs_mode if sampling.reported else None,
        "policy_version": request.version,
        "sampling": sampling.used,
        **fields,
    }
    return Call(
        call_id=f"{request.answer_id}.{choice}",
        rollout_id=info.rollout_id,
        attempt_id=info.attempt_id,
        sequence=request.sequence,
        choice=choice,
        api=api.engine_api,
        trace_id=caller.trace_id,
        span_id=caller.span_id,
        retry=caller.retry,
        policy=request.route.policy,
        model=str(request.body.get("model", "")),
        tags=request.tags,
        selected=request.selected,
        request=request.body,
        asked=sampling.asked if caller.selected else {**sampling.asked, ASKED_SELECTED: False},
        edited=edited,
        start_time=request.start,
        end_time=time.time(),
        **fields,
    )


def _masked(request: ModelRequest, otherwise: str | None) -> str | None:
    """Why a call must not be trained: an image in its prompt, or what else is known."""
    return MEDIA if request.body is not request.chat else otherwise


def answer_calls(request: ModelRequest, answer: EngineAnswer, **fields: Any) -> list[Call]:
    """The calls of a whole or assembled answer; its messages are those that the agent gets."""
    allowed = _allowed_ids(answer)
    sampling = request.sampling
    if answer.sampling and request.selected:
        sampling = check_echo(sampling, answer.sampling)
    known = bool(allowed) or answer.grammar is not None
    if known and sampling.guided:
        sampling = msgspec.structs.replace(sampling, off_policy=False)
    masked = _masked(request, sampling.masked)
    fields |= {"allowed": allowed, "masked": masked, "sampling": sampling.used, "response_id": answer.id}
    fields["grammar"] = answer.grammar
    if noted := request.route.edits.recorded(request.api.engine_api, answer):
        fields["edited"] = {**request.edited, **noted}
    if answer.policy_version is not None:
        fields["policy_version"] = answer.policy_version
    counts = _counts(request, answer)
    return [
        _choice_call(request, answer, choice, count, fields)
        for choice, count in zip(answer.choices, counts, strict=True)
    ]


def streamed_calls(request: ModelRequest, answer: EngineAnswer) -> list[Call]:
    """The calls of a stream that has ended; calls without token ids are masked."""
    calls = answer_calls(request, answer)
    if request.route.trainable and not _exact(calls):
        if request.route.stream_ids is None:
            request.route.inexact_streams.add(request.tools)
        for call in calls:
            if call.masked is None and request.selected and not call.has_ids:
                call.masked = "no-ids"
    return calls


def _choice_call(
    request: ModelRequest, answer: EngineAnswer, choice: EngineChoice, count: Counts, fields: dict[str, Any]
) -> Call:
    prompt_ids = _prompt_ids(answer, choice)
    if not (request.route.in_vocabulary(prompt_ids) and request.route.in_vocabulary(choice.token_ids)):
        fields = {**fields, "masked": OUTSIDE_VOCABULARY}
    return call_of(
        request,
        choice.index,
        response=choice.message if request.api.engine_api == "chat" else {"text": choice.text},
        prompt_ids=prompt_ids,
        response_ids=choice.token_ids,
        logprobs=choice.logprobs.values() if choice.logprobs else None,
        policy_versions=None if choice.token_ids is None else choice.policy_versions,
        finish_reason=choice.finish_reason,
        prompt_tokens=count[0],
        completion_tokens=count[1],
        **fields,
    )


def failed_call(request: ModelRequest, failure: CallFailure) -> Call:
    """The call of a request that got no answer."""
    fields: dict[str, Any] = {"status": "error", "error": failure.record, "masked": failure.masked}
    if failure.over_length:
        action = request.route.edits.too_long(failure)
        fields |= {"masked": OVER_LENGTH, "edited": {OVER_LENGTH_FIELD: action}}
    return call_of(request, **fields)


def _exact(calls: list[Call]) -> bool:
    """Every choice has its ids, one logprob for each, and as many as the engine counted."""
    return all(
        c.prompt_ids is not None
        and c.response_ids is not None
        and c.logprobs is not None
        and len(c.response_ids) == len(c.logprobs)
        and c.completion_tokens in (None, len(c.response_ids))
        for c in calls
    )


def _allowed_ids(answer: EngineAnswer) -> list[list[int]] | None:
    """The allowed ids of a guided choice, if the engine sends them and every response is one of them."""
    allowed = answer.guided_choice_ids
    if not allowed or not all(is_allowed(allowed, choice.token_ids) for choice in answer.choices):
        return None
    return allowed


def _prompt_ids(answer: EngineAnswer, choice: EngineChoice) -> list[int] | None:
    return choice.prompt_token_ids if choice.prompt_token_ids is not None else answer.prompt_token_ids


Counts = tuple[int | None, int | None]
"""Prompt and completion tokens, as the engine counts them."""


def _counts(request: ModelRequest, answer: EngineAnswer) -> list[Counts]:
    """The token counts of each choice.

    The engine reports one sum. Where the ids of several choices (or prompts) add up to it, each gets its own
    count; otherwise each gets the sum as reported, and none will pass as exact.
    """
    usage, choices = answer.usage, answer.choices
    if usage is None:
        return [(None, None)] * len(choices)
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if len(choices) == 1:
        return [(prompt, completion)]
    lengths = [None if c.token_ids is None else len(c.token_ids) for c in choices]
    adds_up = None not in lengths and sum(n or 0 for n in lengths) == completion
    n = request.body.get("n")
    prompts = [len(_prompt_ids(answer, c) or ()) for c in choices]
    heads = prompts[:: n if isinstance(n, int) and n > 0 else 1]
    several = len(heads) > 1 and sum(heads) == prompt
    return [
        (prompts[i] if several else prompt, lengths[i] if adds_up else completion)
        for i in range(len(choices))
    ]


@dataclass
class CallWriter:
    """Stores calls, and hands each to ``on_call`` once it is durable."""

    store: Store
    attempts: OpenAttempts
    metrics: Metrics
    guards: Sequence[CallGuard]
    on_call: Callable[[Call], None] | None

    async def write(self, request: ModelRequest, calls: list[Call]) -> None:
        """Store the calls of a request: durable on return, and written even if this task is cancelled.

        Raise :class:`RequestRefused` when the store does not take them: the answer must be withheld.
        """
        claims = request.caller.claims
        try:
            await self.store.add_calls(calls, fence=claims.fence)
        except asyncio.CancelledError:  # a second write of the same call ids does no harm
            writes = request.attempt.writes
            write = asyncio.gather(self.write(request, calls), return_exceptions=True)
            writes.add(write)
            write.add_done_callback(writes.discard)
            raise
        except AttemptEnded as error:
            self.metrics.lost_records += len(calls)
            self.attempts.revoke(claims.attempt_id)
            raise RequestRefused(409, "attempt-ended", str(error)) from None
        except Exception as error:
            self.metrics.lost_records += len(calls)
            log.exception(
                "attempt %s: the store did not take a record; its answer is withheld", claims.attempt_id
            )
            message = "the record of this call could not be stored, so its answer is withheld"
            raise store_failed(message, error) from None
        self.metrics.count_calls(calls)
        for guard in self.guards:
            guard.count(calls)
        if self.on_call:
            asyncio.get_running_loop().call_soon(self._notify, calls)

    async def count_refused(self, refused: RequestRefused) -> None:
        """Count a refused request, in the ledger of its attempt if that is known."""
        self.metrics.refused[refused.reason] += 1
        rollout, attempt = (c.rollout_id, c.attempt_id) if (c := refused.claims) else (None, None)
        try:
            await self.store.count("refused", refused.reason, rollout_id=rollout, attempt_id=attempt)
        except Exception:
            self.metrics.uncounted += 1
            log.exception("the store did not take the count of a refused request (%s)", refused.reason)

    def _notify(self, calls: list[Call]) -> None:
        """Call the hook, after the answer was sent."""
        assert self.on_call is not None
        for call in calls:
            try:
                self.on_call(call)
            except Exception:
                self.metrics.hook_errors += 1
                if self.metrics.hook_errors == 1:
                    log.exception(
                        "on_call failed; further failures are only counted (GET /metrics: hook_errors)"
                    )
