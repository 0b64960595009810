"""The records of a call: one :class:`Call` for each choice of its answer.

Invariant: ids, logprobs and counts are the engine's own, never repaired. The fidelity verdict decides whether
they agree; an answer that cannot be read becomes a call with status ``error``.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from agentlightning.gateway.apis.reasoning import split_message
from agentlightning.gateway.errors import BadAnswer, CallFailure
from agentlightning.gateway.metrics import OVER_LENGTH, OVER_LENGTH_FIELD
from agentlightning.gateway.request import ModelRequest
from agentlightning.gateway.rewrite.sampling import check_echo, is_allowed
from agentlightning.gateway.upstream.answer import MAX_INTEGER, EngineAnswer, EngineChoice
from agentlightning.types import Call
from agentlightning.webserver.body import check_plain

AnswerT = TypeVar("AnswerT", bound=EngineAnswer)
OUTSIDE_VOCABULARY = "outside-vocabulary"
"""``Call.masked`` of a call with token ids that the policy does not have."""


def check_answer(request: ModelRequest, answer: AnswerT) -> AnswerT:
    """Return an answer, or a chunk of one, that the request can get; raise :class:`BadAnswer` for others."""
    for choice in answer.choices:
        if choice.index >= (asked := request.choices):
            raise BadAnswer(f"the engine's answer has a choice {choice.index}, and {asked} were asked for")
        _check_versions(choice)
    try:
        for part in (answer.sampling, *(p for c in answer.choices for p in (c.message, c.delta))):
            if part is not None:
                check_plain(part, MAX_INTEGER)
    except ValueError as error:
        raise BadAnswer(f"the engine's answer cannot be kept: {error}") from None
    served = request.route.served_version()
    newest = max([v for c in answer.choices for v in c.policy_versions or ()], default=answer.policy_version)
    # While weights are updated, an engine may be one version ahead of what the driver says.
    if served is not None and newest is not None and newest > served + 1:
        raise BadAnswer(f"the engine's answer is of policy version {newest}; version {served} is served")
    return answer


def _check_versions(choice: EngineChoice) -> None:
    versions, ids = choice.policy_versions, choice.token_ids
    if versions is not None and ids is not None and len(versions) != len(ids):
        raise BadAnswer(
            f"choice {choice.index} of the engine's answer has {len(versions)} policy versions and "
            f"{len(ids)} token ids"
        )


def answer_calls(request: ModelRequest, answer: EngineAnswer, **fields: Any) -> list[Call]:
    """The calls of a whole or assembled answer; move reasoning out of its messages if the route says so."""
    allowed = _allowed_ids(answer)
    sampling = request.sampling
    if answer.sampling and request.selected:
        sampling = check_echo(sampling, answer.sampling)
    known = bool(allowed) or answer.grammar is not None
    if known and sampling.guided:
        sampling = msgspec.structs.replace(sampling, off_policy=False)
    masked = request.masked(sampling)
    fields |= {"allowed": allowed, "masked": masked, "sampling": sampling.used, "response_id": answer.id}
    fields["grammar"] = answer.grammar
    if _split_reasoning(request, answer):
        fields["edited"] = {**request.edited, "reasoning": "split"}
    if answer.policy_version is not None:
        fields["policy_version"] = answer.policy_version
    counts = _counts(request, answer)
    return [
        _choice_call(request, answer, choice, count, fields)
        for choice, count in zip(answer.choices, counts, strict=True)
    ]


def _choice_call(
    request: ModelRequest, answer: EngineAnswer, choice: EngineChoice, count: Counts, fields: dict[str, Any]
) -> Call:
    prompt_ids = _prompt_ids(answer, choice)
    if not (request.route.in_vocabulary(prompt_ids) and request.route.in_vocabulary(choice.token_ids)):
        fields = {**fields, "masked": OUTSIDE_VOCABULARY}
    return request.call(
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
    """The record of a call without an answer."""
    fields: dict[str, Any] = {"status": "error", "error": failure.record, "masked": failure.masked}
    if failure.over_length:
        action = "drop" if request.route.settings.over_length == "drop" else "error"
        fields |= {"masked": OVER_LENGTH, "edited": {OVER_LENGTH_FIELD: action}}
    return request.call(**fields)


def exact(calls: list[Call]) -> bool:
    """Every choice has its ids, one logprob for each, and as many as the engine counted."""
    return all(
        c.prompt_ids is not None
        and c.response_ids is not None
        and c.logprobs is not None
        and len(c.response_ids) == len(c.logprobs)
        and c.completion_tokens in (None, len(c.response_ids))
        for c in calls
    )


def _split_reasoning(request: ModelRequest, answer: EngineAnswer) -> bool:
    """Move reasoning out of the messages' content; False where there is none."""
    if request.api.engine_api != "chat" or request.route.settings.reasoning == "keep":
        return False
    opened = request.route.settings.reasoning == "split-opened"
    return any([split_message(choice.message, opened) for choice in answer.choices if choice.message])


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
