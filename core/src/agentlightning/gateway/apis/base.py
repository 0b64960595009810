"""What the gateway needs of an API that agents speak, and the parts that translated APIs share.

Engines are asked in chat completions or completions. Any other API is translated: a request to a chat body, a
whole chat answer to the API's own answer and events. A format holds no state and does no I/O. Invariant: ids,
records, sampling and refusals of a translated call are those of the chat call; a request that chat
completions cannot express is refused with the reason, and no field is dropped silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentlightning.gateway.errors import BadAnswer, RequestRefused

EngineApi = Literal["chat", "completions"]
ToolArguments = Mapping[str, Sequence[str]]
"""Tool call id → arguments exactly as the model wrote them, the latest first; an id may occur twice."""
PASSED_THROUGH = frozenset(
    {
        "chat_template_kwargs",
        "frequency_penalty",
        "guided_choice",
        "logit_bias",
        "min_p",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "structured_outputs",
        "top_k",
    }
)
"""Fields of chat completions that a translated request keeps (an SDK's ``extra_body``)."""
TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "token_logprobs", "policy_version")
"""Top-level fields of a translated answer with the sampled tokens; SDKs keep fields they do not know."""
WRONG_SHAPE = (AttributeError, KeyError, TypeError)
"""Raised by rendering an answer of another shape than the API's."""


class ApiFormat(ABC):
    """An API as the gateway serves it."""

    name: str
    """As metrics count it and, of a translated API, ``Call.edited["api"]`` records it."""
    engine_api: EngineApi = "chat"
    """The API that the engine is asked in (``Call.api``)."""
    translated = True
    """Whether answers are rewritten; streams of others may pass through."""
    keep_alive: bytes
    """Sent in a stream while its engine is silent."""

    @abstractmethod
    def chat_body(self, body: dict[str, Any], arguments: ToolArguments) -> dict[str, Any]:
        """The engine's request body for ``body``; :class:`RequestRefused` 400 names what is not served."""

    @abstractmethod
    def render(self, body: Mapping[str, Any], raw: bytes, answer_id: str, stream: bool) -> bytes:
        """The engine's whole answer ``raw`` (parsed before) to ``body``: a body, or the events of its stream.

        ``answer_id`` is used where the engine gave no id. :class:`BadAnswer`: the API cannot express it.
        """

    @abstractmethod
    def error(self, status: int, raw: bytes) -> bytes:
        """The body of an error answer in this API's shape."""

    @abstractmethod
    def error_event(self, status: int, raw: bytes) -> bytes:
        """The same as the last event of a stream."""


class TranslatedApi(ApiFormat):
    """An API that engines do not speak."""

    @abstractmethod
    def answer(self, body: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A whole chat answer (checked, with an id) in this API's shape."""

    @abstractmethod
    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """A whole answer of this API as the events of its stream."""

    def render(self, body: Mapping[str, Any], raw: bytes, answer_id: str, stream: bool) -> bytes:
        """The engine's chat answer in this API's shape."""
        chat: dict[str, Any] = msgspec.json.decode(raw)
        chat["id"] = chat.get("id") or answer_id
        check_message(chat["choices"][0]["message"])
        try:
            answer = self.answer(body, chat)
        except WRONG_SHAPE as error:
            raise BadAnswer(f"the engine's answer does not fit the {self.name} API: {error!r}") from None
        return b"".join(self.events(answer)) if stream else msgspec.json.encode(answer)


def unsupported(what: str, instead: str) -> RequestRefused:
    """A request for what the gateway does not do; ``instead`` says the way out."""
    return RequestRefused(400, "unsupported-field", f"{what} is not served here; {instead}")


def malformed(what: str, wanted: str) -> RequestRefused:
    """A request that is not of the API's shape."""
    return RequestRefused(400, "bad-body", f"{what} must be {wanted}")


def check_fields(
    asked: Mapping[str, Any], known: Collection[str], refused: Mapping[str, str], where: str = ""
) -> None:
    """Refuse fields that ask for something and are not ``known``. ``refused``: field → the way out."""
    for name, value in asked.items():
        if (
            name in known
            or name in PASSED_THROUGH
            or value is None
            or value is False
            or value in ([], {}, "")
        ):
            continue
        raise unsupported(f"{where}{name}", refused.get(name, "leave it out"))


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """``value`` as a JSON object."""
    if not isinstance(value, dict):
        raise malformed(where, f"an object, got {type(value).__name__}")
    return value


def text(value: Any, where: str) -> str:
    """``value`` as a text."""
    if not isinstance(value, str):
        raise malformed(where, f"a text, got {type(value).__name__}")
    return value


def kind_of(value: Any, where: str, default: str | None = None) -> str | None:
    """The ``type`` of a JSON object; ``default`` where it has none."""
    kind = mapping(value, where).get("type", default)
    return None if kind is None else text(kind, f"{where}.type")


def listed(value: Any, where: str) -> list[Any]:
    """``value`` as a list; nothing is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise malformed(where, f"a list, got {type(value).__name__}")
    return value


def joined(content: Any, where: str, kinds: Collection[str]) -> str:
    """The text of a content: a string, or text parts of these ``kinds``, one a line (as vLLM joins them)."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = enumerate(listed(content, where))
    return "\n".join(text_of(part, f"{where}[{place}]", kinds) for place, part in parts)


def text_of(part: Any, where: str, kinds: Collection[str]) -> str:
    """The text of a part of one of these ``kinds``."""
    if (kind := kind_of(part, where)) not in kinds:
        raise unsupported(f"{where} of type {kind!r}", f"send text ({', '.join(sorted(kinds))})")
    return text(part.get("text", part.get("refusal")), f"{where}.text")


def function(name: Any, description: Any, parameters: Any, strict: Any, where: str) -> dict[str, Any]:
    """A function tool as chat completions have it."""
    out: dict[str, Any] = {"name": text(name, f"{where}.name")}
    for key, value in (("description", description), ("parameters", parameters), ("strict", strict)):
        if value is not None:
            out[key] = value
    return {"type": "function", "function": out}


def json_form(form: Any, where: str, name: str = "answer") -> dict[str, Any] | None:
    """A format of structured output as ``response_format``; plain text is none."""
    if (kind := kind_of(form, where)) == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        raise unsupported(f"{where} of type {kind!r}", "use text, json_object or json_schema")
    keys = ("name", "description", "schema", "strict")
    schema = {"name": name, **{key: form[key] for key in keys if form.get(key) is not None}}
    return {"type": "json_schema", "json_schema": schema}


def tokens(chat: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine sampled, from its chat answer: fields for the top of a translated's answer."""
    choice = chat["choices"][0]
    content = (choice.get("logprobs") or {}).get("content")
    found = (
        chat.get("prompt_token_ids"),
        choice.get("token_ids"),
        None if content is None else [entry["logprob"] for entry in content],
        chat.get("policy_version"),
    )
    return {name: value for name, value in zip(TOKEN_FIELDS, found, strict=True) if value is not None}


def call_id(call: Mapping[str, Any], tag: str, place: int) -> str:
    """Id of the tool call at ``place`` of the answer ``tag``: the engine's, if it gives any."""
    return str(call.get("id") or f"call_{tag}_{place}")


def check_message(message: Mapping[str, Any]) -> None:
    """:class:`BadAnswer` for an engine's message that is not of the shape that an API format must know."""
    for name in ("content", "refusal"):
        _expect(message.get(name), str, name)
    calls = message.get("tool_calls")
    _expect(calls, list, "tool_calls")
    for place, call in enumerate(calls or ()):
        at = f"tool_calls[{place}]"
        _expect(call, dict, at, may_lack=False)
        _expect(call.get("function"), dict, f"{at}.function", may_lack=False)
        _expect(call["function"].get("name"), str, f"{at}.function.name", may_lack=False)
        _expect(call["function"].get("arguments"), str, f"{at}.function.arguments")


def _expect(value: Any, kind: type, where: str, may_lack: bool = True) -> None:
    if not (isinstance(value, kind) or (value is None and may_lack)):
        raise BadAnswer(f"{where} of the engine's message is of type {type(value).__name__}")


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning of a chat message that was split off, by the gateway or by the engine."""
    return next(
        (r for name in ("reasoning_content", "reasoning") if isinstance(r := message.get(name), str)), ""
    )
