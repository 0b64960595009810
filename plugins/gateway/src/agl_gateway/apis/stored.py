"""Answers of the Responses API and conversations as objects: what the openai SDK reads, adds to and deletes.

Each request is admitted as a model call is, and finds only the objects of its own attempt
(:mod:`.history`). Source: OpenAI API reference, Responses and Conversations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from agentlightning.gateway.apis import Choose, Handler, Route
from agentlightning.gateway.attempts import Admitted
from agl_gateway.apis.checks import listed, mapping, unsupported
from agl_gateway.apis.history import Change, Conversation, History
from agl_gateway.apis.items import messages_of
from agl_gateway.apis.objects import (
    delete_item,
    input_items,
    item_not_found,
    numbered_items,
    page,
    recorded_answer,
)
from agl_gateway.apis.responses import Responses

Answer = dict[str, Any]
Find = Callable[[History, web.Request, Admitted], Awaitable[Answer]]
_RESPONSE = "/v1/responses/{id}"
_CONVERSATION = "/v1/conversations/{id}"
_ITEM = "/v1/conversations/{id}/items/{item}"


def _handled(answer: Find) -> Handler:
    """The handler of a route that answers with an object."""

    async def handler(admitted: Admitted, http: web.Request, choose: Choose) -> web.StreamResponse:
        found = await answer(admitted.attempt.part(History), http, admitted)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    return handler


# ---------------------------------------------------------------------------------------------------- answers
async def _get_answer(history: History, http: web.Request, admitted: Admitted) -> Answer:
    if http.query.get("stream") in ("true", "True", "1"):
        raise unsupported("stream=true of a stored answer", "retrieve it whole")
    return recorded_answer(await history.call(http.match_info["id"]))


async def _delete_answer(history: History, http: web.Request, admitted: Admitted) -> Answer:
    await history.delete_answer(name := http.match_info["id"])
    return {"id": name, "object": "response", "deleted": True}


async def _get_input_items(history: History, http: web.Request, admitted: Admitted) -> Answer:
    return page(input_items(await history.call(http.match_info["id"])), http.query)


# ---------------------------------------------------------------------------------------------- conversations
async def _create(history: History, http: web.Request, admitted: Admitted) -> Answer:
    body = admitted.body
    messages = messages_of(listed(body.get("items"), "items"), {}, "items")
    return _shown(await history.create(messages, dict(mapping(body.get("metadata") or {}, "metadata"))))


async def _get(history: History, http: web.Request, admitted: Admitted) -> Answer:
    return _shown(await history.conversation(http.match_info["id"]))


async def _update(history: History, http: web.Request, admitted: Admitted) -> Answer:
    conversation = await history.conversation(name := http.match_info["id"])
    metadata = dict(mapping(admitted.body.get("metadata") or {}, "metadata"))
    return _shown(await history.change(conversation, Change("update", name, metadata=metadata)))


async def _delete(history: History, http: web.Request, admitted: Admitted) -> Answer:
    conversation = await history.conversation(name := http.match_info["id"])
    await history.change(conversation, Change("delete", name))
    return {"id": name, "object": "conversation.deleted", "deleted": True}


async def _add_items(history: History, http: web.Request, admitted: Admitted) -> Answer:
    conversation = await history.conversation(name := http.match_info["id"])
    messages = messages_of(listed(admitted.body.get("items"), "items"), {}, "items")
    first = len(conversation.places)
    await history.change(conversation, Change("append", name, messages))
    return page(_items(conversation, first), {"order": "asc", "limit": "100"})


async def _list_items(history: History, http: web.Request, admitted: Admitted) -> Answer:
    return page(_items(await history.conversation(http.match_info["id"])), http.query)


async def _get_item(history: History, http: web.Request, admitted: Admitted) -> Answer:
    conversation, item = await history.conversation(http.match_info["id"]), http.match_info["item"]
    found = next((one for one in _items(conversation) if one["id"] == item), None)
    if found is None:
        raise item_not_found(item)
    return found


async def _delete_item(history: History, http: web.Request, admitted: Admitted) -> Answer:
    conversation = await history.conversation(name := http.match_info["id"])
    index, left = delete_item(name, conversation.places, http.match_info["item"])
    change = Change("replace", name, [left] if left else [], index)
    return _shown(await history.change(conversation, change))


def _items(conversation: Conversation, first: int = 0) -> list[Answer]:
    return numbered_items(conversation.conversation_id, conversation.places, first)


def _shown(conversation: Conversation) -> Answer:
    return {
        "id": conversation.conversation_id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": conversation.metadata,
    }


_FOUND: dict[Route, Find] = {
    ("GET", _RESPONSE): _get_answer,
    ("DELETE", _RESPONSE): _delete_answer,
    ("GET", f"{_RESPONSE}/input_items"): _get_input_items,
    ("POST", "/v1/conversations"): _create,
    ("GET", _CONVERSATION): _get,
    ("POST", _CONVERSATION): _update,
    ("DELETE", _CONVERSATION): _delete,
    ("GET", f"{_CONVERSATION}/items"): _list_items,
    ("POST", f"{_CONVERSATION}/items"): _add_items,
    ("GET", _ITEM): _get_item,
    ("DELETE", _ITEM): _delete_item,
}
_HANDLERS: Final[Mapping[Route, Handler]] = {route: _handled(find) for route, find in _FOUND.items()}


class StoredResponses(Responses):
    """The Responses API with its further routes: stored answers and conversations."""

    def routes(self) -> Mapping[Route, Handler]:
        return _HANDLERS


STORED_RESPONSES: Final = StoredResponses()
