"""The engine's answer as typed structs: the parts that the record needs, checked by their types when parsed.

One shape covers chat and completions, whole answers and stream chunks. Source: OpenAI API reference; token
ids as vLLM's ``return_token_ids`` gives them (``prompt_token_ids``: chat on top, completions per choice).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

import msgspec

from agentlightning.gateway.errors import TOO_LONG, BadAnswer, CallFailure, EngineReply, EngineUnreachable
from agentlightning.types import Grammar
from agentlightning.webserver.body import check_plain

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


T = TypeVar("T")
_HEAD = ("id", "created", "model", "usage", "sampling", "guided_choice_ids", "grammar")
"""Top-level fields whose last value counts."""


@dataclass(slots=True)
class _PartialChoice:
    """One choice while it arrives."""

    ids: list[int] | None = None
    prompt: list[int] | None = None
    logprobs: list[float | None] | None = None
    text: list[str] = field(default_factory=list)
    message: dict[str, Any] = field(default_factory=dict)
    tools: dict[int, dict[str, Any]] = field(default_factory=dict)
    numbered: bool = False
    """A tool call came without an index and got one."""
    finish: str | None = None
    versions: list[int] = field(default_factory=list)
    """Version of each id, as far as the engine has said it."""

    def add(self, piece: EngineChoice, version: int | None = None) -> None:
        """``version``: of the ids of a piece that does not give one for each."""
        if (sampled_by := piece.policy_versions) is None and version is not None:
            sampled_by = [version] * len(piece.token_ids or ())
        self.versions += sampled_by or ()
        self.ids = _extended(self.ids, piece.token_ids)
        self.prompt = piece.prompt_token_ids if self.prompt is None else self.prompt
        if piece.logprobs is not None:
            self.logprobs = _extended(self.logprobs, piece.logprobs.numbers())
        if piece.text:
            self.text.append(piece.text)
        if piece.delta:
            self._add_delta(piece.delta)
        self.finish = piece.finish_reason or self.finish

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key == "content" and isinstance(value, str):
                self.text.append(value)
            elif key == "tool_calls" and isinstance(value, list):
                for piece in value:
                    self._add_tool(piece)
            elif isinstance(value, str) and key != "role":
                self.message[key] = (self.message.get(key) or "") + value
            elif value is not None:
                self.message[key] = value

    def _add_tool(self, piece: Any) -> None:
        if isinstance(piece, dict) and piece.get("index") is None:
            piece["index"], self.numbered = self._next_tool(piece.get("id")), True
        if not isinstance(piece, dict) or not isinstance(index := piece["index"], int):
            raise BadAnswer("a tool call of the engine's stream is not an object with an index")
        new = {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        tool = self.tools.setdefault(index, new)
        tool["id"] = piece.get("id") or tool["id"]
        if isinstance(function := piece.get("function"), dict):
            for name in ("name", "arguments"):
                tool["function"][name] += function.get(name) or ""

    def _next_tool(self, call_id: Any) -> int:
        """The index of a piece that has none: a new call's if it names another id than the last call has."""
        last = max(self.tools, default=-1)
        begins = last < 0 or (call_id is not None and call_id != self.tools[last]["id"])
        return last + 1 if begins else last

    def choice(self, index: int, api: str, oldest: int | None) -> EngineChoice:
        """Build a whole choice. ``oldest``: the version of the answer, which says it for all tokens."""
        text = "".join(self.text)
        whole = EngineChoice(index, finish_reason=self.finish, token_ids=self.ids)
        whole.prompt_token_ids = self.prompt
        whole.logprobs = None if self.logprobs is None else Logprobs(token_logprobs=self.logprobs)
        if any(version != oldest for version in self.versions):
            whole.policy_versions = self.versions
        if api != "chat":
            whole.text = text
            return whole
        content = (text or None) if self.tools else text
        whole.message = {"role": "assistant", "content": content, **self.message}
        if self.tools:
            whole.message["tool_calls"] = [self.tools[i] for i in sorted(self.tools)]
        return whole


def _extended(known: list[T] | None, more: list[T] | None) -> list[T] | None:
    """``known`` with ``more`` at its end; ``None`` while neither has come."""
    if more is None:
        return known
    if known is None:
        return list(more)
    known += more
    return known


class AnswerAssembler:
    """An answer from its chunks. ``expected``: number of choices that the answer has when it is finished."""

    def __init__(self, api: str, expected: int = 1) -> None:
        self._api = api
        self._expected = expected
        self._choices: dict[int, _PartialChoice] = {}
        self._head = EngineAnswer(choices=[])
        self._finished = 0

    @property
    def finished(self) -> bool:
        """Every expected choice has its finish reason."""
        return self._finished >= self._expected

    @property
    def tokens(self) -> int:
        """Token ids that have arrived."""
        return sum(len(partial.ids or ()) for partial in self._choices.values())

    @property
    def empty(self) -> bool:
        """No choice has begun."""
        return not self._choices

    def add(self, chunk: AnswerChunk) -> bool:
        """Take the next chunk. Return whether its tool calls had no index and got one, in the chunk too."""
        head = self._head
        for name in _HEAD:
            if (value := getattr(chunk, name)) is not None:
                setattr(head, name, value)
        if chunk.policy_version is not None:  # of several choices, one may have begun before an update
            known = chunk.policy_version if head.policy_version is None else head.policy_version
            head.policy_version = min(chunk.policy_version, known)
        if head.prompt_token_ids is None:
            head.prompt_token_ids = chunk.prompt_token_ids
        for piece in chunk.choices:
            if (partial := self._choices.get(piece.index)) is None:
                partial = self._choices[piece.index] = _PartialChoice()
            finished, partial.numbered = partial.finish is not None, False
            partial.add(piece, chunk.policy_version)
            self._finished += not finished and partial.finish is not None
        return any(self._choices[piece.index].numbered for piece in chunk.choices)

    def answer(self) -> EngineAnswer:
        """Build a whole answer from the part that has arrived."""
        head = self._head
        head.choices = [
            self._choices[i].choice(i, self._api, head.policy_version) for i in sorted(self._choices)
        ]
        return head


def check_answer(answer: EngineAnswer, choices: int, served: int | None) -> None:
    """Raise :class:`BadAnswer` for an answer, or a chunk of one, that no request for so many ``choices`` can
    get while version ``served`` of the policy is served.
    """
    if len(answer.choices) > 1 and len({one.index for one in answer.choices}) != len(answer.choices):
        raise BadAnswer("two choices of the engine's answer have the same index")
    for choice in answer.choices:
        if choice.index >= choices:
            raise BadAnswer(f"the engine's answer has a choice {choice.index}, and {choices} were asked for")
        versions, ids = choice.policy_versions, choice.token_ids
        if versions is not None and ids is not None and len(versions) != len(ids):
            raise BadAnswer(
                f"choice {choice.index} of the engine's answer has {len(versions)} policy versions and "
                f"{len(ids)} token ids"
            )
    try:
        for part in (answer.sampling, *(p for c in answer.choices for p in (c.message, c.delta))):
            if part is not None:
                check_plain(part, MAX_INTEGER)
    except ValueError as error:
        raise BadAnswer(f"the engine's answer cannot be kept: {error}") from None
    newest = max([v for c in answer.choices for v in c.policy_versions or ()], default=answer.policy_version)
    # While weights are updated, an engine may be one version ahead of what the driver says.
    if served is not None and newest is not None and newest > served + 1:
        raise BadAnswer(f"the engine's answer is of policy version {newest}; version {served} is served")
