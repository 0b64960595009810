"""Checks of a translated request: each returns a value in its type, or raises with the path that is wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import Any, TypeVar

from agentlightning.gateway.errors import RequestRefused

T = TypeVar("T")
PASSED_THROUGH = frozenset({
    "chat_template_kwargs", "frequency_penalty", "guided_choice", "logit_bias", "min_p",
    "presence_penalty", "repetition_penalty", "seed", "stop", "structured_outputs", "top_k",
})  # fmt: skip
"""Fields of chat completions that a translated request keeps (an SDK's ``extra_body``)."""


def unsupported(what: str, instead: str) -> RequestRefused:
    """The refusal of a request that the gateway does not serve; ``instead`` says what to do."""
    return RequestRefused(400, "unsupported-field", f"{what} is not served here; {instead}")


def malformed(what: str, wanted: str) -> RequestRefused:
    """The refusal of a request that is not of the API's shape."""
    return RequestRefused(400, "bad-body", f"{what} must be {wanted}")


def check_fields(
    body: Mapping[str, Any], known: Set[str], refused: Mapping[str, str], path: str = ""
) -> None:
    """Refuse fields that are neither ``known`` nor empty. ``refused``: field → what to do instead."""
    for name in body.keys() - known - PASSED_THROUGH:
        value = body[name]
        if value is not None and value is not False and value not in ([], {}, ""):
            raise unsupported(f"{path}{name}", refused.get(name, "leave it out"))


def mapping(value: Any, path: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a JSON object."""
    return _typed(value, dict, "an object", path)


def text(value: Any, path: str) -> str:
    """Return ``value`` if it is a text."""
    return _typed(value, str, "a text", path)


def listed(value: Any, path: str) -> list[Any]:
    """Return ``value`` if it is a list; an empty list for ``None``."""
    return [] if value is None else _typed(value, list, "a list", path)


def _typed(value: Any, kind: type[T], wanted: str, path: str) -> T:
    if not isinstance(value, kind):
        raise malformed(path, f"{wanted}, got {type(value).__name__}")
    return value


def type_of(value: Any, path: str, default: str | None = None) -> str | None:
    """The ``type`` of a JSON object; ``default`` where it has none."""
    kind = mapping(value, path).get("type", default)
    return None if kind is None else text(kind, f"{path}.type")


def joined(content: Any, path: str, kinds: Collection[str]) -> str:
    """The text of a content: a string, or text parts of these ``kinds``, joined by newlines as vLLM does."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = enumerate(listed(content, path))
    return "\n".join(text_of(part, f"{path}[{index}]", kinds) for index, part in parts)


def text_of(part: Any, path: str, kinds: Collection[str]) -> str:
    """The text of a part of one of these ``kinds``."""
    if (kind := type_of(part, path)) not in kinds:
        raise unsupported(f"{path} of type {kind!r}", f"send text ({', '.join(sorted(kinds))})")
    return text(part.get("text", part.get("refusal")), f"{path}.text")


def function(name: Any, description: Any, parameters: Any, strict: Any, path: str) -> dict[str, Any]:
    """A function tool as chat completions have it."""
    optional = {"description": description, "parameters": parameters, "strict": strict}
    given = {key: value for key, value in optional.items() if value is not None}
    return {"type": "function", "function": {"name": text(name, f"{path}.name"), **given}}


def copied(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The fields of these ``names`` and of :data:`PASSED_THROUGH`, which chat completions have too."""
    found = {name: body[name] for name in (*names, *PASSED_THROUGH) if body.get(name) is not None}
    return {**found, "stream": True} if body.get("stream") else found


def response_format(format: Any, path: str) -> dict[str, Any] | None:
    """A format of structured output as ``response_format``; plain text is none."""
    if (kind := type_of(format, path)) == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        raise unsupported(f"{path} of type {kind!r}", "use text, json_object or json_schema")
    keys = ("name", "description", "schema", "strict")
    schema = {"name": "answer", **{key: format[key] for key in keys if format.get(key) is not None}}
    return {"type": "json_schema", "json_schema": schema}
