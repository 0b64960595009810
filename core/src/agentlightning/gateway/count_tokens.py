"""``POST /v1/messages/count_tokens``: how many tokens a prompt of the Messages API has.

Only the engine knows its tokenizer and its chat template, so the engine counts. No call is made and none is
recorded; the attempt's key is checked all the same.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from agentlightning.gateway.admission.attempts import Admitted
from agentlightning.gateway.apis.messages import MESSAGES
from agentlightning.gateway.errors import EngineUnreachable, RequestRefused
from agentlightning.gateway.pipeline import Pipeline
from agentlightning.gateway.reply import AgentReply


async def count_tokens(pipeline: Pipeline, http: web.Request) -> web.StreamResponse:
    """Answer with ``{"input_tokens": n}``; 404 where the engine cannot count."""

    async def answer(admitted: Admitted) -> web.StreamResponse:
        body = MESSAGES.chat_body({"max_tokens": 1, **admitted.body}, admitted.attempt.tool_arguments)
        _, route = pipeline.planner.choose(admitted, body)
        try:
            count = await pipeline.fitter.count(route, {**body, "model": route.model})
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

    return await pipeline.admitted(AgentReply(http, MESSAGES), answer)
