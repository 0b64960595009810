"""``POST /v1/messages/count_tokens``: how many tokens a prompt of the Messages API has.

Only the engine knows its tokenizer and its chat template, so the engine counts. No call is made and none is
recorded; the attempt's key is checked all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from agentlightning.gateway.admission.attempts import OpenAttempt
from agentlightning.gateway.admission.identity import Caller
from agentlightning.gateway.apis.base import format_error
from agentlightning.gateway.apis.formats import MESSAGES
from agentlightning.gateway.errors import EngineUnreachable, RequestRefused

if TYPE_CHECKING:
    from agentlightning.gateway.handler import Handler


async def count_tokens(handler: Handler, request: web.Request) -> web.StreamResponse:
    """Answer with ``{"input_tokens": n}``; 404 where the engine cannot count."""

    async def call(caller: Caller, attempt: OpenAttempt, asked: dict[str, Any]) -> web.StreamResponse:
        chat = MESSAGES.chat({"max_tokens": 1, **asked}, attempt.arguments)
        _, route = handler.choose(caller, attempt, chat)
        try:
            count = await handler.over_length.count(route, {**chat, "model": route.model})
        except EngineUnreachable as error:
            raise RequestRefused(error.status, error.code, str(error), retry=True) from None
        if count is None:
            raise RequestRefused(
                404,
                "cannot-count",
                f"the engine of policy {route.policy!r} has not counted this prompt (POST /tokenize); "
                "read usage.input_tokens of the answer",
            )
        return web.Response(
            body=msgspec.json.encode({"input_tokens": count}), content_type="application/json"
        )

    return format_error(MESSAGES, await handler.guarded(request, call))
