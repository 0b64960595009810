"""``emit_tool_call``: ask the model of the current attempt, and record the call under tags of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning.capture.context import current_attempt, tagged
from agentlightning.types import LLM, UsageError
from agentlightning.webserver.proxies import go_direct


def emit_tool_call(
    *,
    messages: Sequence[Mapping[str, Any]],
    model: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    context: Mapping[str, Any] | None = None,
    **request: Any,
) -> Any:
    """Ask the current attempt's model endpoint and return its answer, the openai SDK's ``ChatCompletion``.

    ``model``: the name to ask for; default: the endpoint's. ``context``: tags of the recorded call, e.g.
    ``{"phase": "search"}``. ``request``: further fields, which outrank the endpoint's
    ``sampling_parameters``. On a running event loop, return an awaitable, because a request that blocks the
    loop might wait for itself: ``await agl.emit_tool_call(…)``. Raise UsageError outside an attempt, and
    without an endpoint.
    """
    attempt = current_attempt()
    if attempt is None:
        raise UsageError(
            "emit_tool_call() was called outside an attempt, where there is no model to ask: call it inside "
            "an agent that a runner runs"
        )
    llm = attempt.llm
    tags = {str(key): str(value) for key, value in (context or {}).items()}
    body = {
        **{k: v for k, v in llm.sampling_parameters.items() if k != "return_token_ids"},
        **request,
        "model": model or llm.model,
        "messages": list(messages),
        **({"tools": list(tools)} if tools else {}),
    }
    answer = _ask(llm, body, tags)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(answer)
    return answer


async def _ask(llm: LLM, body: dict[str, Any], tags: dict[str, str]) -> Any:
    from openai import AsyncOpenAI

    go_direct()
    with tagged(**tags):
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
            return await client.chat.completions.create(**body)
