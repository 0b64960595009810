"""Clients in JavaScript at the gateway: the ``openai`` package and the Vercel AI SDK, over all three APIs.

Runs where ``AGL_NODE_DIR`` names a folder with ``node_modules`` (``make test-node`` makes one). The model is
a script, no account is needed, and nothing but loopback is asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.through_gateway import assert_one_row, leased_attempt
from agl_testing.scripted import Exchange

from agentlightning.types import Record

GIVEN = os.environ.get("AGL_NODE_DIR")
PROGRAM = Path(__file__).with_name("clients.mjs")
LOOPS = {
    "ai_responses": "responses",
    "ai_responses_unstored": "responses",
    "ai_chat": None,
    "ai_messages": "messages",
    "ai_stream": "responses",
    "ai_messages_stream": "messages",
}


COMPACT = '{"a":41}'
"""Arguments as ``JSON.stringify`` writes them."""


def answering(arguments: str) -> Any:
    def reply(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return f"it is {last['content']}"
        return tool_call("add", arguments) if body.get("tools") else "hello"

    return reply


async def ran(
    folder: Path, name: str, arguments: str = COMPACT
) -> tuple[dict[str, Any], Record, list[Exchange]]:
    """Run one client. Return what it printed, the record, and what the engine got."""
    if not GIVEN or not (modules := Path(GIVEN) / "node_modules").is_dir():
        pytest.skip("AGL_NODE_DIR names no folder with node_modules: run `make test-node`")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    (work := folder / "work").mkdir()
    (work / "node_modules").symlink_to(modules)
    shutil.copy(PROGRAM, work)
    async with ScriptedModelServer(answering(arguments)) as engine, leased_attempt(engine, folder) as leased:
        url, key = leased.context.gateway or "", leased.context.key or ""
        variables = {
            "PATH": os.environ["PATH"],
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": key,
        }
        process = await asyncio.create_subprocess_exec(
            *("node", PROGRAM.name, name),
            cwd=work,
            env=variables,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, errors = await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == 0, errors.decode()
        record, verdicts = await leased.finish()
        assert {verdict.kind for verdict in verdicts} == {"gateway-only"}
        assert [call.status for call in record.calls] == ["ok"] * len(engine.log)
        assert {call.tags["agent"] for call in record.calls} == {"writer"}
        return json.loads(said), record, engine.log


@pytest.mark.parametrize("name", LOOPS)
async def test_a_loop_of_tools_is_one_row(tmp_path: Path, name: str) -> None:
    said, record, log = await ran(tmp_path, name)
    assert said == {"text": "it is 42", "steps": 2}
    assert [call.edited.get("api") for call in record.calls] == [LOOPS[name]] * 2
    assert_one_row(record, log)


@pytest.mark.parametrize("name", ["ai_responses", "ai_chat", "ai_messages"])
async def test_arguments_written_anew_by_the_ai_sdk(tmp_path: Path, name: str) -> None:
    """It parses arguments and writes them again. Over Messages the gateway finds the model's own text."""
    _, record, log = await ran(tmp_path, name, '{"a":  41}')
    sent = log[1].body["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert sent == ('{"a":  41}' if name == "ai_messages" else COMPACT)
    if name == "ai_messages":
        assert_one_row(record, log)


async def test_openai_chat(tmp_path: Path) -> None:
    said, record, _ = await ran(tmp_path, "openai_chat")
    assert said == {"text": "hello"} and len(record.calls) == 1


async def test_openai_responses_continue(tmp_path: Path) -> None:
    said, record, log = await ran(tmp_path, "openai_responses")
    assert said == {"text": "hello", "previous": True, "items": 3} and len(record.calls) == 2
    assert_one_row(record, log)


async def test_openai_conversations(tmp_path: Path) -> None:
    said, record, log = await ran(tmp_path, "openai_conversation")
    assert said == {"items": 4}
    assert_one_row(record, log)


async def test_an_image_of_the_ai_sdk(tmp_path: Path) -> None:
    _, record, log = await ran(tmp_path, "ai_image")
    sent = log[0].body["messages"][-1]["content"][1]["image_url"]["url"]
    kept = (record.calls[0].request or {})["messages"][-1]["content"][1]["image_url"]
    assert sent.startswith("data:image/png;base64,") and kept["media_type"] == "image/png"
    assert record.calls[0].masked == "media"
