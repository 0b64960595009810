"""The loop that plays a task of verifiers, in this process: ask, run the tools, until an answer calls none.

verifiers' own loop is a program that it starts for each rollout. The library allows one in the process, as
long as every model call goes through its interception server, which counts turns and keeps the trace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["GatewayHarness"]


class GatewayHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]  # untyped where verifiers is missing
    """A chat with tools over MCP."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
    ) -> Any:
        """Play to the end. A call that the environment refuses, because turns or tokens are used up, or a
        condition of the task holds, ends the conversation: the task is scored as it stands.
        """
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=None, trust_env=False))
            tools, dispatch, connected = await connect_mcp({"mcpServers": servers}, stack)
            body = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
            while True:
                answer = await http.post(
                    f"{endpoint.rstrip('/')}/chat/completions",
                    json=body,
                    headers={"Authorization": f"Bearer {secret}"},
                )
                if answer.status_code != 200:
                    refused = trace.stop_condition is not None
                    return ProgramResult(0 if refused else 1, "", "" if refused else answer.text)
                message = answer.json()["choices"][0]["message"]
                messages.append({name: value for name, value in message.items() if value is not None})
                if not message.get("tool_calls"):
                    return ProgramResult(0, "", "")
                messages += [await _called(connected, dispatch, call) for call in message["tool_calls"]]


async def _called(servers: Any, dispatch: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Run a tool call; the model is told what was wrong with it."""
    name = call["function"]["name"]
    try:
        arguments = json.loads(call["function"].get("arguments") or "{}")
    except ValueError as error:
        content: Any = f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
    else:
        if not isinstance(arguments, dict):
            content = "error: tool arguments must be a JSON object; resend as an object"
        elif name in dispatch:
            content = await call_mcp(servers, dispatch, name, arguments)
        else:
            content = f"error: unknown tool {name!r}"
    return {"role": "tool", "tool_call_id": call["id"], "content": content}
