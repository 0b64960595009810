"""An API format: another API that agents speak at the gateway, told to engines in chat completions.

An API format translates a request to a chat body, and a whole chat answer to its own answer and events. It
holds no state and does no I/O. Invariant: engines are asked in chat completions only, so ids, records,
sampling and refusals are those of any other call; a request that chat completions cannot
express is refused with the reason; no field is dropped silently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from agentlightning.gateway.errors import BadAnswer, RequestRefused

WrittenArguments = Mapping[str, Sequence[str]]
"""Tool call id → arguments, to the letter as the model wrote them; several, where an id was given twice."""
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
"""Fields of chat completions that go on as they are (an SDK's ``extra_body``)."""
TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "token_logprobs", "policy_version")
"""Fields on top of an answer that say what was sampled; SDKs keep fields they do not know."""


class ApiFormat(Protocol):
    """What the gateway needs of an API to serve it."""

    name: str
    """As ``Call.edited["api"]`` and the metrics say it."""
    keep_alive: bytes
    """What a stream says while its engine is silent."""

    def chat(self, asked: Mapping[str, Any], said: WrittenArguments) -> dict[str, Any]:
        """The chat body of a request, or :class:`RequestRefused` 400 saying what cannot be served."""

    def answer(self, asked: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A whole chat answer (checked before, with an id) in this API's shape."""

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """A whole answer of this API as the events of its stream."""

    def error(self, status: int, raw: bytes) -> bytes:
        """An OpenAI error body in this API's shape."""

    def error_event(self, status: int, raw: bytes) -> bytes:
        """The same as the last event of a stream."""


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


def failure_kind(value: Any, where: str, default: str | None = None) -> str | None:
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
    if (kind := failure_kind(part, where)) not in kinds:
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
    if (kind := failure_kind(form, where)) == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        raise unsupported(f"{where} of type {kind!r}", "use text, json_object or json_schema")
    keys = ("name", "description", "schema", "strict")
    schema = {"name": name, **{key: form[key] for key in keys if form.get(key) is not None}}
    return {"type": "json_schema", "json_schema": schema}


def tokens(chat: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine sampled, from its chat answer: fields for the top of an API format's answer."""
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


def format_error(api_format: ApiFormat, response: web.StreamResponse) -> web.StreamResponse:
    """``response``, where it is an error, as the API format says errors."""
    if isinstance(response, web.Response) and response.status >= 400 and isinstance(response.body, bytes):
        response.body = api_format.error(response.status, response.body)
        response.content_type = "application/json"
    return response


def typed_event(event: Mapping[str, Any]) -> bytes:
    """A server-sent event whose name is its type."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
