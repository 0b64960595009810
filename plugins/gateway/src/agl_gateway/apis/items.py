"""Items of the Responses API as chat messages, and chat messages as items.

A model's message and the function calls after it are one assistant turn, as the engine sampled it. Invariant:
the items of an answer, sent back, are the turn that the engine wrote: text, function calls and their
arguments unchanged and in its order. Source: OpenAI API reference, Responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import agl_gateway.apis.checks as checks
from agentlightning.gateway.errors import RequestRefused
from agl_gateway.apis.checks import malformed, text, unsupported
from agl_gateway.apis.images import contents, responses_image
from agl_gateway.apis.translated import call_id, reasoning_of

Item = Mapping[str, Any]
Message = dict[str, Any]
ANSWER = "resp_"
"""What the id of an answer begins with; frameworks tell it from a conversation's by this."""
CONVERSATION = "conv_"
"""What the id of a conversation begins with."""
REFERENCE = "item_reference"
NAME = "responses"
"""The name of the Responses API in records."""
_TEXTS = {"input_text", "output_text", "text", "refusal"}
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


# ------------------------------------------------------------------------------------------ items to messages
def messages_of(items: Sequence[Any], earlier: Mapping[str, Item], path: str = "input") -> list[Message]:
    """The messages of a list of items. ``earlier``: the items that references may name, by id."""
    out: list[Message] = []
    for index, item in enumerate(items):
        at = f"{path}[{index}]"
        kind = checks.type_of(item, at, "message")
        if kind == REFERENCE:
            item = _referred(item, earlier, at)
            kind = item["type"]
        if (add := _ITEMS.get(str(kind))) is None:
            kinds = ", ".join([*_ITEMS, REFERENCE])
            raise unsupported(f"{at} of type {kind!r}", f"items may be {kinds}")
        add(out, item, at)
    return out


def referred(items: Any) -> list[str]:
    """The ids that the references in a list of items name."""
    listed = items if isinstance(items, list) else []
    found = (item.get("id") for item in listed if isinstance(item, dict) and item.get("type") == REFERENCE)
    return [name for name in found if isinstance(name, str)]


def _referred(item: Item, earlier: Mapping[str, Item], path: str) -> Item:
    name = text(item.get("id"), f"{path}.id")
    if name not in earlier:
        message = (
            f"Item with id '{name}' not found. Kept are items of this attempt's own answers, unless these "
            "were asked with store=false; send the item itself."
        )
        raise RequestRefused(404, "item_not_found", message)
    return earlier[name]


def _message(out: list[Message], item: Item, path: str) -> None:
    if (role := _ROLES.get(str(item.get("role")))) is None:
        raise malformed(f"{path}.role", f"one of {', '.join(_ROLES)}")
    content = _content(item.get("content"), f"{path}.content", images=role == "user")
    last = out[-1] if out else {}
    only_reasoning = (
        last.get("content", "") is None and "tool_calls" not in last and "reasoning_content" in last
    )
    if role == "assistant" and only_reasoning:
        last["content"] = content
    else:
        out.append({"role": role, "content": content})


def _content(content: Any, path: str, images: bool) -> str | list[dict[str, Any]]:
    """Text, or a list of parts with images where these may be."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[str | dict[str, Any]] = []
    for index, part in enumerate(checks.listed(content, path)):
        at = f"{path}[{index}]"
        if images and checks.type_of(part, at) == "input_image":
            parts.append(responses_image(part, at))
        else:
            parts.append(checks.text_of(part, at, _TEXTS))
    return contents(parts)


def _reasoning(out: list[Message], item: Item, path: str) -> None:
    """Open an assistant turn with its reasoning. A vendor's encrypted reasoning has no text to read."""
    if thought := checks.joined(item.get("content"), f"{path}.content", {"reasoning_text"}):
        out.append({"role": "assistant", "content": None, "reasoning_content": thought})


def _function_call(out: list[Message], item: Item, path: str) -> None:
    name = text(item.get("name"), f"{path}.name")
    if namespace := item.get("namespace"):
        name = full_name(str(namespace), name)
    call = {
        "id": text(item.get("call_id"), f"{path}.call_id"),
        "type": "function",
        "function": {"name": name, "arguments": text(item.get("arguments"), f"{path}.arguments")},
    }
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": None})
    out[-1].setdefault("tool_calls", []).append(call)


def _function_call_output(out: list[Message], item: Item, path: str) -> None:
    content = _content(item.get("output"), f"{path}.output", images=True)
    call = text(item.get("call_id"), f"{path}.call_id")
    out.append({"role": "tool", "tool_call_id": call, "content": content})


_ITEMS = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
}


def full_name(namespace: str, name: str) -> str:
    """The name by which the engine knows a function of a namespace."""
    return f"{namespace}__{name}"


# ------------------------------------------------------------------------------------------ messages to items
def answer_items(
    message: Mapping[str, Any],
    answer_id: str,
    *,
    status: str = "completed",
    logprobs: Sequence[Any] = (),
    namespaces: Mapping[str, tuple[str, str]] | None = None,
) -> list[dict[str, Any]]:
    """Reasoning, text, function calls. The last item has the answer's status, the others are complete.

    ``namespaces``: the name by which the engine knows a function → its namespace and its name there.
    """
    name = answer_id.removeprefix(ANSWER)
    items: list[dict[str, Any]] = []
    if thought := reasoning_of(message):
        content = [{"type": "reasoning_text", "text": thought}]
        items.append({"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": content})
    calls = message.get("tool_calls") or ()
    if message.get("content") or message.get("refusal") or not calls:
        content = _said(message, logprobs)
        items.append({"id": f"msg_{name}", "type": "message", "role": "assistant", "content": content})
    for index, call in enumerate(calls):
        function = call["function"]
        item = {
            "id": f"fc_{name}_{index}",
            "type": "function_call",
            "call_id": call_id(call, answer_id, index),
            "name": function["name"],
            "arguments": function.get("arguments") or "",
        }
        if namespaces and function["name"] in namespaces:
            item["namespace"], item["name"] = namespaces[function["name"]]
        items.append(item)
    return [{**item, "status": "completed"} for item in items[:-1]] + [{**items[-1], "status": status}]


def turn_of(message: Mapping[str, Any], answer_id: str) -> list[Message]:
    """An answer as the messages that its items are when they are sent back."""
    return messages_of(answer_items(message, answer_id), {})


def items_of(message: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """The items of one message of a request; ``name`` makes their ids."""
    content, role = message.get("content"), message["role"]
    if role == "assistant":
        yield from answer_items(message, name)
    elif role == "tool":
        kind = {"id": f"fco_{name}", "type": "function_call_output", "status": "completed"}
        output = _input_parts(content) if isinstance(content, list) else content or ""
        yield {**kind, "call_id": message.get("tool_call_id"), "output": output}
    else:
        parts = _input_parts(
            content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        )
        yield {"id": f"msg_{name}", "type": "message", "role": role, "status": "completed", "content": parts}


def _input_parts(parts: Sequence[Any]) -> list[dict[str, Any]]:
    """Parts of chat completions as parts of an item; of an image that is known by its hash, the hash."""
    out: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "image_url":
            shown = {"type": "input_image", "detail": "auto", "file_id": None, **part["image_url"]}
            out.append({**shown, "image_url": shown.pop("url", None)})
        else:
            out.append({"type": "input_text", "text": part.get("text", "")})
    return out


def _said(message: Mapping[str, Any], logprobs: Sequence[Any]) -> list[dict[str, Any]]:
    content, refusal = message.get("content") or "", message.get("refusal")
    part = {"type": "output_text", "text": content, "annotations": [], "logprobs": list(logprobs)}
    if not refusal:
        return [part]
    return [*([part] if content else []), {"type": "refusal", "refusal": refusal}]
