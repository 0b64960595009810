"""The engine's answer as typed structs: the parts that the record needs, checked by their types when parsed.

One shape covers chat and completions, whole answers and stream chunks. Source: OpenAI API reference; token
ids as vLLM's ``return_token_ids`` gives them (``prompt_token_ids``: chat on top, completions per choice).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec

from agentlightning.gateway.errors import TOO_LONG, BadAnswer, CallFailure, EngineReply, EngineUnreachable
from agentlightning.types import Grammar

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Raised by decoding bytes that are no JSON, have another shape, or are nested endlessly."""
ABORTED = "abort"
"""Finish reason, in vLLM and SGLang, of an answer that the engine gave up to make way for new weights."""
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A count of tokens, a number of a choice or a version. A column of the store holds 63 bits at most."""
MAX_INTEGER = 2**63
"""An answer with an integer of this size or more is refused."""


class TokenLogprob(msgspec.Struct, gc=False):
    """Natural-log probability of one sampled token."""

    logprob: float


class Logprobs(msgspec.Struct):
    """``content`` for chat, ``token_logprobs`` for completions."""

    content: list[TokenLogprob] | None = None
    token_logprobs: list[float | None] | None = None

    def numbers(self) -> list[float | None] | None:
        """One number for each token, ``None`` for each that the engine left out."""
        return self.token_logprobs if self.content is None else [entry.logprob for entry in self.content]

    def values(self) -> list[float] | None:
        """One number for each token; ``None`` if the engine left one out."""
        incomplete = self.content is None and None in (self.token_logprobs or ())
        return None if incomplete else cast("list[float] | None", self.numbers())


class EngineChoice(msgspec.Struct):
    """One choice: of a whole answer with ``message`` or ``text``, of a chunk with ``delta`` or ``text``."""

    index: Count = 0
    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None
    logprobs: Logprobs | None = None
    policy_versions: list[Count] | None = None
    """Version that sampled each token, if not ``policy_version`` for all. Only our engines say it."""


class EngineUsage(msgspec.Struct):
    """Token counts of the whole request."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class EngineAnswer(msgspec.Struct):
    """A whole answer."""

    choices: list[EngineChoice]
    id: str | None = None
    created: Annotated[float, msgspec.Meta(gt=-MAX_INTEGER, lt=MAX_INTEGER)] | None = None
    model: str | None = None
    usage: EngineUsage | None = None
    prompt_token_ids: list[TokenId] | None = None
    policy_version: Count | None = None
    """Version of the policy that sampled the answer, or its oldest token; only our engines report it."""
    sampling: dict[str, Any] | None = None
    """The sampling values of the engine; only our engines report them."""
    guided_choice_ids: list[list[TokenId]] | None = None
    """Guided choice: the allowed answers as token ids; the logprobs are of the distribution over them."""
    grammar: Grammar | None = None
    """Structured output: the grammar that masked the logits; the logprobs are of the masked distribution."""


class AnswerChunk(EngineAnswer):
    """A chunk of a streamed answer; ``error`` if the engine gave up half-way."""

    choices: list[EngineChoice] = []
    error: Any = None


Decode = Callable[[bytes, Callable[[bytes], Any]], Any]
"""Decodes an answer, or a chunk of one, with the decoder that it is given."""
_answers = msgspec.json.Decoder(EngineAnswer)
_chunks = msgspec.json.Decoder(AnswerChunk)


def parse_answer(raw: bytes, api: str, decode: Decode | None = None) -> EngineAnswer:
    """Parse a whole answer. Raise :class:`BadAnswer` with the error in it, or :class:`EngineUnreachable` when
    the engine gave the answer up half-way.
    """
    try:
        answer: EngineAnswer = decode(raw, _answers.decode) if decode else _answers.decode(raw)
    except DECODE_ERRORS as error:
        raise BadAnswer(f"the engine's answer is not a completion ({len(raw)} bytes): {error}") from None
    if not answer.choices:
        raise BadAnswer("the engine's answer has no choices")
    if len({choice.index for choice in answer.choices}) != len(answer.choices):
        raise BadAnswer("two choices of the engine's answer have the same index")
    part = "message" if api == "chat" else "text"
    for choice in answer.choices:
        if getattr(choice, part) is None:
            raise BadAnswer(f"choice {choice.index} of the engine's answer has no {part}")
    raise_if_aborted(answer)
    return answer


def raise_if_aborted(answer: EngineAnswer) -> None:
    """Raise :class:`EngineUnreachable` for an answer that the engine gave up; the agent may ask again."""
    if any(choice.finish_reason == ABORTED for choice in answer.choices):
        message = f"the engine gave this answer up half-way (finish_reason {ABORTED!r})"
        tokens = sum(len(choice.token_ids or ()) for choice in answer.choices)
        raise EngineUnreachable(503, "engine-aborted", message, tokens=tokens)


MENDED = "answer"
"""Key of ``Call.edited``: what was mended in an answer of the engine's, as clients could not read it."""
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\."
)
HALF_CHARACTERS = "half characters replaced"
NO_INDEX = "tool calls without an index numbered"


def mended_text(raw: bytes) -> bytes:
    """Return JSON with the replacement character for half characters (lone surrogates), which some engines
    send where a token ends within a character; ``raw`` itself where there are none. Clients that read them
    would fail later, and no store can keep them.
    """
    given = raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        try:
            text = raw.decode(errors="surrogatepass").encode("utf-16", "surrogatepass")
            raw = text.decode("utf-16", "replace").encode()
        except UnicodeDecodeError:
            return given
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return raw
    mended = _ESCAPE.sub(lambda found: b"\\ufffd" if len(found[0]) == 6 else found[0], raw)
    return given if mended == given else mended


def parse_chunk(raw: bytes, decode: Decode | None = None) -> AnswerChunk:
    """Parse one chunk of a stream, or raise :class:`BadAnswer`."""
    try:
        chunk: AnswerChunk = decode(raw, _chunks.decode) if decode else _chunks.decode(raw)
        return chunk
    except DECODE_ERRORS as error:
        raise BadAnswer(f"an event of the engine's stream is not a completion chunk: {error}") from None


def is_over_length(code: str, message: str) -> bool:
    """Whether an error says that the prompt does not fit the model's context; engines word it variously."""
    text = message.lower()
    return code == TOO_LONG or "maximum context length" in text or "context window" in text


def parse_error(status: int, raw: bytes) -> tuple[str, str]:
    """Code and message of an error answer of any shape."""
    try:
        body: Any = msgspec.json.decode(raw)
    except DECODE_ERRORS:
        return f"http-{status}", raw[:500].decode("utf-8", "replace") or "(empty answer)"
    inner = body.get("error", body) if isinstance(body, dict) else body
    code, message = None, inner
    if isinstance(inner, dict):
        code, message = inner.get("code"), inner.get("message") or inner.get("detail") or inner
    return code if isinstance(code, str) and code else f"http-{status}", str(message)[:2000]


def hidden_error(reply: EngineReply) -> EngineReply:
    """Return the answer with an error's status if its status is 200 and its body an error, as some proxies
    send it: the error's own code where that is an HTTP status, else 502.
    """
    if reply.status != 200 or b'"error"' not in reply.body or b'"choices"' in reply.body:
        return reply
    try:
        body: Any = msgspec.json.decode(reply.body)
    except DECODE_ERRORS:
        return reply
    if not isinstance(body, dict) or not (error := body.get("error")):
        return reply
    code = error.get("code") if isinstance(error, dict) else None
    text = str(code) if isinstance(code, int | str) else ""
    status = int(text) if text.isdecimal() and len(text) == 3 and text[0] in "45" else 502
    return msgspec.structs.replace(reply, status=status)


def engine_error(reply: EngineReply) -> CallFailure:
    """The failure of a call that the engine answered with a status other than 200."""
    if reply.status < 400:
        return BadAnswer(f"the engine answered HTTP {reply.status}")
    code, message = parse_error(reply.status, reply.body)
    recorded_as = f"HTTP {reply.status} {code}"
    if is_over_length(code, message):  # frameworks look for OpenAI's status and code
        return CallFailure(400, TOO_LONG, message, retry=False, recorded_as=recorded_as)
    return CallFailure(reply.status, code, message, recorded_as=recorded_as, reply=reply)
