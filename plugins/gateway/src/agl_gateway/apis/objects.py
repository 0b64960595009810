"""Recorded calls and the messages of conversations as objects of the Responses API.

Invariant: the items of an object are those that made its messages, but for their ids and for texts in several
parts, which are one part here. Source: OpenAI API reference, Responses and Conversations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentlightning.gateway.errors import RequestRefused
from agentlightning.types import Call
from agl_gateway.apis.items import ANSWER, CONVERSATION, Message, items_of
from agl_gateway.apis.responses import RESPONSES

LONGEST_PAGE = 100
_SAME = ("temperature", "top_p", "parallel_tool_calls")
_CHOICES = ("auto", "none", "required")


# ---------------------------------------------------------------------------------------------------- answers
def recorded_answer(call: Call) -> dict[str, Any]:
    """The answer of a record, in the words in which it was given."""
    choice: dict[str, Any] = {"message": call.response, "finish_reason": call.finish_reason}
    choice["token_ids"] = None if call.response_ids is None else list(call.response_ids)
    if call.logprobs is not None:
        choice["logprobs"] = {"content": [{"logprob": logprob} for logprob in call.logprobs]}
    usage = {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.completion_tokens}
    chat = {
        "id": call.response_id,
        "created": int(call.start_time),
        "model": call.model,
        "choices": [choice],
        "usage": None if None in usage.values() else usage,
        "prompt_token_ids": None if call.prompt_ids is None else list(call.prompt_ids),
        "policy_version": call.policy_version,
    }
    return RESPONSES.answer(_asked(call), chat)


def input_items(call: Call) -> list[dict[str, Any]]:
    """The items that the engine was given: of the conversation before a request, and of the request."""
    own = 1 if call.edited.get("instructions") else 0
    name = f"{(call.response_id or '').removeprefix(ANSWER)}_in"
    return [
        item
        for index, message in enumerate((call.request or {})["messages"][own:])
        for item in items_of(message, f"{name}{index}")
    ]


def _asked(call: Call) -> dict[str, Any]:
    """The fields of a request that its answer repeats, as far as the record has them."""
    request, noted = call.request or {}, call.edited
    body = {name: request[name] for name in _SAME if name in request}
    if noted.get("instructions"):
        body["instructions"] = request["messages"][0]["content"]
    if "max_completion_tokens" in request:
        body["max_output_tokens"] = request["max_completion_tokens"]
    if tools := request.get("tools"):
        body["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
    if (choice := request.get("tool_choice")) is not None:
        named = choice not in _CHOICES
        body["tool_choice"] = {"type": "function", **choice["function"]} if named else choice
    if form := request.get("response_format"):
        body["text"] = {"format": {"type": form["type"], **form.get("json_schema", {})}}
    continues = noted.get("continues", "")
    if continues:
        field = "conversation" if continues.startswith(CONVERSATION) else "previous_response_id"
        body[field] = continues
    return body


# ---------------------------------------------------------------------------------------------- conversations
def numbered_items(
    conversation_id: str, places: Sequence[Message | None], first: int
) -> list[dict[str, Any]]:
    """The items of a conversation from message ``first`` on."""
    return [item for index, item in _of_places(conversation_id, places) if index >= first]


def _of_places(
    conversation_id: str, places: Sequence[Message | None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    name = conversation_id.removeprefix(CONVERSATION)
    for index, message in enumerate(places):
        for item in items_of(message, f"{name}.{index}") if message is not None else ():
            yield index, item


def delete_item(
    conversation_id: str, places: Sequence[Message | None], item_id: str
) -> tuple[int, Message | None]:
    """The place of an item's message, and what is left of the message without the item."""
    found = next(((i, one) for i, one in _of_places(conversation_id, places) if one["id"] == item_id), None)
    if found is None:
        raise item_not_found(item_id)
    index, item = found
    left = dict(places[index] or {})
    if item["type"] == "reasoning":
        del left["reasoning_content"]
    elif item["type"] == "function_call":
        place = int(item_id.rpartition("_")[2])
        left["tool_calls"] = [call for at, call in enumerate(left["tool_calls"]) if at != place]
        if not left["tool_calls"]:
            del left["tool_calls"]
    else:
        left["content"] = None
    speaks = left["role"] == "assistant" and any(
        left.get(part) for part in ("content", "tool_calls", "reasoning_content")
    )
    return index, left if speaks else None


def item_not_found(item_id: str) -> RequestRefused:
    """The refusal of an item that a conversation does not have."""
    return RequestRefused(404, "item_not_found", f"Item with id '{item_id}' not found in this conversation.")


def page(items: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """One page of a list: ``order`` (the newest first by default), ``after``, and ``limit`` (20)."""
    order, after, limit = query.get("order", "desc"), query.get("after"), query.get("limit", "20")
    if order not in ("asc", "desc"):
        raise RequestRefused(400, "bad-query", f"order must be asc or desc, not {order[:40]!r}")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= LONGEST_PAGE:
        raise RequestRefused(
            400, "bad-query", f"limit must be a number from 1 to {LONGEST_PAGE}, not {limit[:40]!r}"
        )
    listed = items if order == "asc" else items[::-1]
    if after:
        at = next((place for place, item in enumerate(listed) if item["id"] == after), None)
        if at is None:
            raise item_not_found(after)
        listed = listed[at + 1 :]
    shown = listed[: int(limit)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(listed) > len(shown),
    }
