"""From a request and its answer to the records that are stored: one :class:`Call` for each choice.

Invariant: ids, logprobs and counts are the engine's own, never repaired. Whether they agree is for the
fidelity verdict to say; what cannot be read at all becomes a call with status ``error``.
"""

from __future__ import annotations

import time
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web

from agentlightning.gateway.admission.attempts import OpenAttempt
from agentlightning.gateway.admission.body import choice_count
from agentlightning.gateway.admission.identity import Caller
from agentlightning.gateway.apis.base import ApiFormat, check_message
from agentlightning.gateway.apis.chat import replay
from agentlightning.gateway.apis.reasoning import split_answer, split_message
from agentlightning.gateway.apis.sse import AnswerAssembler
from agentlightning.gateway.errors import BadAnswer
from agentlightning.gateway.metrics import OVER_LENGTH, OVER_LENGTH_FIELD
from agentlightning.gateway.rewrite.guided_choice import is_allowed
from agentlightning.gateway.rewrite.sampling import OFF_POLICY, SamplingDecision, check_echo
from agentlightning.gateway.upstream.answer import EngineAnswer, EngineChoice, ErrorInfo, check_choices
from agentlightning.gateway.upstream.route import Upstream
from agentlightning.types import Call, Tags

Api = Literal["chat", "completions"]
AnswerT = TypeVar("AnswerT", bound=EngineAnswer)
OUTSIDE_VOCABULARY = "outside-vocabulary"
"""Why a call with token ids that the policy does not have is not trained."""
_SHAPE = (AttributeError, KeyError, TypeError)
"""What telling an answer on raises where it is of another shape."""


class ModelRequest(msgspec.Struct, kw_only=True):
    """One request under way."""

    caller: Caller
    attempt: OpenAttempt
    route: Upstream
    api: Api
    body: dict[str, Any]
    """As the agent sent it; of an API format, its translation to chat completions."""
    sent: dict[str, Any]
    """As the engine gets it."""
    tags: Tags
    selected: bool
    sampling: SamplingDecision
    edited: dict[str, Any] = {}
    """What the over-length policy and the reasoning split changed (``Call.edited``)."""
    sequence: int
    start: float
    version: int | None = None
    """Version the route served when the call was forwarded, for engines that do not name an answer's version:
    should weights change under way, the older number is the safe one for staleness."""
    assembler: AnswerAssembler | None = None
    """What has arrived of a stream."""
    holds_seen: int = 0
    """How often its policy had been held when it was forwarded."""
    begun: bool = False
    """Part of the answer has left: it cannot be asked again."""
    committed: bool = False
    api_format: ApiFormat | None = None
    """The API that the agent speaks, where it is another than ``api``."""
    asked: dict[str, Any] = {}
    """The agent's request as its API format has it."""
    out: web.StreamResponse | None = None
    """The stream of the answer, once its head leaves."""

    @property
    def answered(self) -> bool:
        """The head of the answer has left: errors can only follow as events."""
        return self.out is not None

    @property
    def streams(self) -> bool:
        """The agent asked for a stream."""
        return self.body.get("stream") is True

    @property
    def wants_usage(self) -> bool:
        """The agent asked for the usage at the end of its stream."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(options.get("include_usage"))

    @property
    def tools(self) -> bool:
        """The request offers tools."""
        return bool(self.body.get("tools") or self.body.get("functions"))

    @property
    def choices(self) -> int:
        """How many choices the answer should have."""
        return choice_count(self.body)

    def call(self, choice: int = 0, **fields: Any) -> Call:
        """A record of this exchange; ``fields`` say how it went."""
        info, caller = self.attempt.info, self.caller
        fields.setdefault("masked", OFF_POLICY if self.sampling.off_policy else None)
        fields.setdefault("policy_version", self.version)
        return Call(
            call_id=f"{info.attempt_id}-{self.sequence}.{choice}",
            rollout_id=info.rollout_id,
            attempt_id=info.attempt_id,
            sequence=self.sequence,
            choice=choice,
            api=self.api,
            trace_id=caller.trace_id,
            span_id=caller.span_id,
            retry=caller.retry,
            policy=self.route.policy,
            model=str(self.body.get("model", "")),
            tags=self.tags,
            selected=self.selected,
            request=self.body,
            sampling=self.sampling.used,
            asked=self.sampling.asked,
            edited={"api": self.api_format.name, **self.edited} if self.api_format else self.edited,
            start_time=self.start,
            end_time=time.time(),
            **fields,
        )


def checked(exchange: ModelRequest, answer: AnswerT) -> AnswerT:
    """An answer, or a part of one, that this request can have got; else :class:`BadAnswer`."""
    check_choices(answer, exchange.choices)
    served = exchange.route.served_version()
    # While weights are updated, an engine may be one version ahead of what the driver says.
    if served is not None and answer.policy_version is not None and answer.policy_version > served + 1:
        raise BadAnswer(
            f"the engine's answer is of policy version {answer.policy_version}; version {served} is served"
        )
    return answer


def answer_calls(exchange: ModelRequest, answer: EngineAnswer, **fields: Any) -> list[Call]:
    """The calls of a whole (or wholly assembled) answer; its messages are split if the policy says so."""
    allowed = _allowed(exchange, answer)
    if answer.sampling and exchange.selected:
        exchange.sampling = check_echo(exchange.sampling, answer.sampling)
    fields.setdefault(
        "policy_version", exchange.version if answer.policy_version is None else answer.policy_version
    )
    _split(exchange, answer)
    counts = _counts(exchange, answer)
    calls = []
    for choice, (prompt_count, completion_count) in zip(answer.choices, counts, strict=True):
        known = exchange.route.in_vocabulary(_prompt(answer, choice)) and exchange.route.in_vocabulary(
            choice.token_ids
        )
        outside = {} if known else {"masked": OUTSIDE_VOCABULARY}
        calls.append(
            exchange.call(
                choice.index,
                response_id=answer.id,
                response=choice.message if exchange.api == "chat" else {"text": choice.text},
                prompt_ids=_prompt(answer, choice),
                response_ids=choice.token_ids,
                logprobs=choice.logprobs.values() if choice.logprobs else None,
                allowed=allowed,
                finish_reason=choice.finish_reason,
                prompt_tokens=prompt_count,
                completion_tokens=completion_count,
                **{**fields, **outside},
            )
        )
    return calls


def chat_answer(exchange: ModelRequest, raw: bytes) -> bytes:
    """The engine's whole answer ``raw`` as the agent gets it, once its calls are made."""
    if "reasoning" not in exchange.edited:
        return raw
    return split_answer(raw, exchange.route.reasoning == "split-opened")


def format_answer(exchange: ModelRequest, raw: bytes) -> dict[str, Any]:
    """The engine's whole answer in the agent's API format; :class:`BadAnswer` where its message lacks a part
    that the format needs.
    """
    assert exchange.api_format is not None
    chat: dict[str, Any] = msgspec.json.decode(chat_answer(exchange, raw))
    chat["id"] = chat.get("id") or f"{exchange.attempt.info.attempt_id}-{exchange.sequence}"
    message = chat["choices"][0]["message"]
    check_message(message)
    exchange.attempt.remember(message, chat["id"])
    try:
        return exchange.api_format.answer(exchange.asked, chat)
    except _SHAPE as error:
        raise BadAnswer(
            f"the engine's answer cannot be told as {exchange.api_format.name}: {error!r}"
        ) from None


def response_body(exchange: ModelRequest, raw: bytes) -> bytes:
    """The body of the engine's whole answer as the agent gets it."""
    return (
        msgspec.json.encode(format_answer(exchange, raw))
        if exchange.api_format
        else chat_answer(exchange, raw)
    )


def replay_answer(exchange: ModelRequest, raw: bytes) -> bytes:
    """The engine's whole answer as a stream; :class:`BadAnswer` where it cannot be told so."""
    if exchange.api_format:
        return b"".join(exchange.api_format.events(format_answer(exchange, raw)))
    try:
        return b"".join(replay(chat_answer(exchange, raw), exchange.api, exchange.wants_usage))
    except _SHAPE as error:
        raise BadAnswer(f"the engine's message cannot be told as a stream: {error!r}") from None


def stopped_calls(exchange: ModelRequest, status: Literal["error", "cancelled"], error: str) -> list[Call]:
    """The records of a call that ended early, with what had arrived of its stream."""
    if exchange.assembler is None or exchange.assembler.empty:
        return [exchange.call(status=status, error=error[:2000])]
    return answer_calls(exchange, assembled(exchange, exchange.assembler), status=status, error=error[:2000])


def assembled(exchange: ModelRequest, assembler: AnswerAssembler) -> EngineAnswer:
    """The answer of a stream, also without a key of the route that came in several pieces."""
    answer = assembler.answer()
    for choice in answer.choices:
        said = msgspec.json.encode([choice.message, choice.text])
        if (kept := exchange.route.scrub(said)) is not said:
            choice.message, choice.text = msgspec.json.decode(kept)
    return answer


def error_call(exchange: ModelRequest, error: str) -> Call:
    """The record of a call that the engine did not answer."""
    return exchange.call(status="error", error=error[:2000], masked=None)


def over_length_call(exchange: ModelRequest, error: str) -> Call:
    """The record of a call whose prompt was refused as too long, by the engine or before it."""
    refused = "drop" if exchange.route.over_length == "drop" else "error"
    exchange.edited = {OVER_LENGTH_FIELD: refused}
    return exchange.call(status="error", error=error[:2000], masked=OVER_LENGTH)


def refusal_call(exchange: ModelRequest, status: int, info: ErrorInfo) -> Call:
    """The record of a call that the engine answered with an error status."""
    error = f"HTTP {status} {info.code}: {info.message}"
    return over_length_call(exchange, error) if info.over_length else error_call(exchange, error)


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


def _split(exchange: ModelRequest, answer: EngineAnswer) -> None:
    """Move reasoning out of the messages' content."""
    if exchange.api != "chat" or exchange.route.reasoning == "keep":
        return
    opened = exchange.route.reasoning == "split-opened"
    if any([split_message(choice.message, opened) for choice in answer.choices if choice.message]):
        exchange.edited["reasoning"] = "split"


def _allowed(exchange: ModelRequest, answer: EngineAnswer) -> list[list[int]] | None:
    """The ids of a guided choice, if the engine says them and every response is among them."""
    allowed = answer.guided_choice_ids
    if not allowed or not all(is_allowed(allowed, choice.token_ids) for choice in answer.choices):
        return None
    if exchange.sampling.guided:
        exchange.sampling = msgspec.structs.replace(exchange.sampling, off_policy=False, guided=False)
    return allowed


def _prompt(answer: EngineAnswer, choice: EngineChoice) -> list[int] | None:
    return choice.prompt_token_ids if choice.prompt_token_ids is not None else answer.prompt_token_ids


def _counts(exchange: ModelRequest, answer: EngineAnswer) -> list[tuple[int | None, int | None]]:
    """Prompt and completion count of each choice.

    The engine reports one sum. Where there are several choices (or prompts) and their ids add up to it, each
    is confirmed; where they do not, each gets the sum as reported, and none will pass as exact.
    """
    usage, choices = answer.usage, answer.choices
    if usage is None:
        return [(None, None)] * len(choices)
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if len(choices) == 1:
        return [(prompt, completion)]
    lengths = [None if c.token_ids is None else len(c.token_ids) for c in choices]
    adds_up = None not in lengths and sum(n or 0 for n in lengths) == completion
    n = exchange.body.get("n")
    heads = choices[:: n if isinstance(n, int) and n > 0 else 1]
    prompts = [len(_prompt(answer, c) or ()) for c in choices]
    several = len(heads) > 1 and sum(len(_prompt(answer, c) or ()) for c in heads) == prompt
    return [
        (prompts[i] if several else prompt, lengths[i] if adds_up else completion)
        for i in range(len(choices))
    ]
