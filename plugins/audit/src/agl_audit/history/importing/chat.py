"""Messages and answers in the forms in which tools keep what SDKs and LangChain sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agl_audit.history.importing.attributes import tool_call
from agl_audit.history.importing.trace import Message, text_of
from agl_audit.history.importing.values import parsed

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "chat": "user",
    "function": "tool",
    "aimessagechunk": "assistant",
}
"""LangChain's type of a message → its role."""
_CLASSES = ("Message", "MessageChunk")


def messages_of(given: Any) -> list[Message]:
    """Return the messages of a request: a list of messages, one within a list (LangChain's batches), an
    object with ``messages``, or a text. Empty if there are none.
    """
    given = parsed(given)
    if isinstance(given, Mapping):
        if "messages" in given:
            return messages_of(given["messages"])
        return messages_of(given["prompt"]) if "prompt" in given else _listed([given])
    if isinstance(given, str):
        return [{"role": "user", "content": given}] if given else []
    if isinstance(given, Sequence):
        if len(given) == 1 and isinstance(given[0], Sequence) and not isinstance(given[0], str):
            return messages_of(given[0])
        return _listed(given)
    return []


def _listed(given: Sequence[Any]) -> list[Message]:
    found = [message_of(one) for one in given]
    return [one for one in found if one is not None] if all(found) else []


def answer_of(given: Any) -> Message | None:
    """Return the answer of a call: a message, ``choices`` of the chat completions API, LangChain's
    ``generations``, or a text; ``None`` if there is none.
    """
    given = parsed(given)
    if isinstance(given, str):
        return {"role": "assistant", "content": given}
    if isinstance(given, Sequence):
        return answer_of(given[0]) if given else None
    if not isinstance(given, Mapping):
        return None
    for name in ("choices", "generations", "message", "output", "messages"):
        if given.get(name):
            inner = given[name]
            return answer_of(inner[-1] if name == "messages" and isinstance(inner, Sequence) else inner)
    message = message_of(given, "assistant")
    if message is None and isinstance(given.get("text"), str):
        return {"role": "assistant", "content": given["text"]}
    return message


def message_of(given: Any, role: str | None = None) -> Message | None:
    """Return a message of OpenAI's or LangChain's form (``type``, ``data``, or ``lc`` with ``kwargs``)."""
    if not isinstance(given, Mapping):
        return None
    if given.get("lc") and isinstance(given.get("kwargs"), Mapping):
        name = str((given.get("id") or [""])[-1])
        kind = next((name.removesuffix(end) for end in reversed(_CLASSES) if name.endswith(end)), name)
        return message_of({"type": kind, **given["kwargs"]}, role)
    if isinstance(given.get("data"), Mapping):
        return message_of({"type": given.get("type"), **given["data"]}, role)
    said = given.get("role") or given.get("type") or role
    if not isinstance(said, str) or ("content" not in given and "tool_calls" not in given):
        return None
    message: Message = {
        "role": _ROLES.get(said.lower(), said.lower()),
        "content": text_of(given.get("content")),
    }
    calls = given.get("tool_calls") or (given.get("additional_kwargs") or {}).get("tool_calls")
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
        message["content"] = message["content"] or None
    for name in ("tool_call_id", "name"):
        if given.get(name):
            message[name] = given[name]
    return message


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    inner = call.get("function")
    if isinstance(inner, Mapping):
        return tool_call(call.get("id"), inner.get("name"), inner.get("arguments"))
    return tool_call(call.get("id"), call.get("name"), call.get("args", call.get("arguments")))
