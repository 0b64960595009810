"""The Claude Agent SDK as it is. It has no adapter: the Claude Code program that it starts asks the model.

Runs where the SDK is installed, which brings that program (``make test-claude-agent-sdk``). The model is a
script, no account is needed, and nothing but loopback is asked.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("claude_agent_sdk")

from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.through_gateway import leased_attempt
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

from agentlightning.types import Call
from plugins.programs.tests.commands.running import bench

APP = """
import asyncio, sys
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

async def main(question):
    options = ClaudeAgentOptions(model="policy", system_prompt="You are solver.", setting_sources=[],
                                 tools=["Bash"], allowed_tools=["Bash"])
    async for message in query(prompt=question, options=options):
        if isinstance(message, ResultMessage):
            print(message.result)

asyncio.run(main(sys.argv[1]))
"""
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


def asking_for(name: str, **arguments: Any) -> Any:
    """A model that calls this tool, and then says what it said."""

    def reply(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        return f"it said {last['content']}" if last["role"] == "tool" else tool_call(name, arguments)

    return reply


def assert_one_row(calls: list[Call]) -> None:
    first, second = calls
    assert first.prompt_ids is not None and first.response_ids is not None and second.prompt_ids is not None
    whole = first.prompt_ids + first.response_ids
    assert second.prompt_ids[: len(whole)] == whole


async def test_in_a_rollout_its_calls_are_recorded_and_named(tmp_path: Path) -> None:
    @tool("add", "Add two numbers", {"a": int, "b": int})
    async def add(given: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}

    engine = ScriptedModelServer(asking_for("mcp__calc__add", a=17, b=25))
    async with engine, leased_attempt(engine, tmp_path) as leased:
        environment = {
            "ANTHROPIC_BASE_URL": (leased.context.gateway or "").removesuffix("/v1"),
            "ANTHROPIC_API_KEY": leased.context.key or "",
            "ANTHROPIC_CUSTOM_HEADERS": "x-agl-agent: solver",
            "HOME": str(tmp_path),
            **QUIET,
        }
        options = ClaudeAgentOptions(
            model="policy",
            system_prompt="You are solver.",
            env=environment,
            cwd=str(tmp_path),
            setting_sources=[],
            tools=[],
            mcp_servers={"calc": create_sdk_mcp_server("calc", tools=[add])},
            allowed_tools=["mcp__calc__add"],
        )
        said = [message async for message in query(prompt="17+25?", options=options)]
        record, verdicts = await leased.finish()
    assert isinstance(said[-1], ResultMessage) and said[-1].result == "it said 42"
    assert [verdict.kind for verdict in verdicts] == ["gateway-only"] * 2
    assert [call.tags["agent"] for call in record.calls] == ["solver"] * 2
    assert_one_row(record.calls)


async def test_as_a_command_its_calls_are_exact(tmp_path: Path) -> None:
    reply = asking_for("Bash", command="echo forty-two", description="Say it")
    async with ScriptedModelServer(reply) as engine, bench(engine) as here:
        command = [sys.executable, "-c", APP, "{task}"]
        ran = await here.run(command, "say it", env={"HOME": str(tmp_path), **QUIET}, reward="exit-status")
    assert ran.command["agl.command.stdout"] == "it said forty-two\n"
    assert ran.kinds == ["exact", "exact"] and [reward.value for reward in ran.rewards] == [1.0]
    assert_one_row(ran.record.calls)
