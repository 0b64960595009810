"""Coding agents as they are: Claude Code over Messages, Codex over Responses, OpenCode as a command.

Runs where ``AGL_CLI_DIR`` names a folder with ``node_modules/.bin`` (``scripts/coding_clis`` makes one). The
model is a script, no account is needed, and nothing but loopback is asked.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call
from agl_testing.contract.through_gateway import leased_attempt

from plugins.programs.tests.commands.running import bench

GIVEN = os.environ.get("AGL_CLI_DIR")
CODEX = """\
model = "policy"
model_provider = "gateway"
web_search = "disabled"
[model_providers.gateway]
name = "gateway"
base_url = "{url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


OPENCODE = {
    "provider": {
        "agl": {
            "npm": "@ai-sdk/openai-compatible",
            "models": {"policy": {}},
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
        }
    }
}


def program(name: str) -> str:
    if not GIVEN or not (place := Path(GIVEN) / "node_modules" / ".bin" / name).exists():
        pytest.skip(f"AGL_CLI_DIR names no folder with node_modules/.bin/{name}: see scripts/coding_clis")
    return str(place)


def script(tool: str, arguments: dict[str, Any]) -> Any:
    def reply(body: dict[str, Any]) -> Any:
        if body["messages"][-1]["role"] == "tool":
            return f"it said {body['messages'][-1]['content']}"
        return tool_call(tool, arguments, content="let me run it")

    return reply


async def run(folder: Path, environment: dict[str, str], *command: str) -> str:
    """Run a program in an empty folder, with nothing of this process's environment but the path."""
    (work := folder / "work").mkdir()
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, said.decode() + errors.decode()
    return said.decode()


async def ran(folder: Path, name: str, api: str, tool: str, arguments: dict[str, Any]) -> None:
    """Let a coding agent run ``echo forty-two``: two turns, the second one extends the first."""
    command = program(name)
    async with (
        ScriptedModelServer(script(tool, arguments)) as engine,
        leased_attempt(engine, folder) as leased,
    ):
        url, key = leased.context.gateway or "", leased.context.key or ""
        if name == "claude":
            environment = {
                "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
                "ANTHROPIC_API_KEY": key,
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            }
            options = ("-p", "run echo forty-two", "--model", "policy", "--allowedTools", "Bash")
        else:
            (folder / ".codex").mkdir()
            (folder / ".codex" / "config.toml").write_text(CODEX.format(url=url))
            environment = {"OPENAI_API_KEY": key}
            options = (
                "exec",
                "--skip-git-repo-check",
                "--sandbox",
                "danger-full-access",
                "run echo forty-two",
            )
        said = await run(folder, environment, command, *options)
        record, verdicts = await leased.finish()
    assert "it said" in said and "forty-two" in said
    assert [call.status for call in record.calls] == ["ok", "ok"]
    assert [verdict.kind for verdict in verdicts] == ["gateway-only"] * 2
    assert {call.edited["api"] for call in record.calls} == {api}
    first, last = record.calls
    assert first.prompt_ids and first.response_ids and last.prompt_ids
    whole = first.prompt_ids + first.response_ids
    assert last.prompt_ids[: len(whole)] == whole, "both turns are trained in one row"


async def test_claude_code(tmp_path: Path) -> None:
    echo = {"command": "echo forty-two", "description": "Say it"}
    await ran(tmp_path, "claude", "messages", "Bash", echo)


async def test_codex(tmp_path: Path) -> None:
    await ran(tmp_path, "codex", "responses", "exec_command", {"cmd": "echo forty-two"})


async def test_opencode(tmp_path: Path) -> None:
    """It asks for a title of its session beside the answer."""
    words = [program("opencode"), "run", "-m", "agl/policy", "{task.question}"]
    env = {"HOME": str(tmp_path), "OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE)}
    async with ScriptedModelServer(lambda body: "forty-two") as engine, bench(engine) as here:
        ran = await here.run(words, {"question": "What is 6 * 7?"}, env=env, reward="exit-status")
    assert ran.rollout.status == "succeeded", ran.attempt.reason
    assert "forty-two" in ran.command["agl.command.stdout"]
    assert len(ran.kinds) >= 2 and set(ran.kinds) == {"exact"}
    assert {call.tags["agent"] for call in ran.record.calls} == {"opencode"}
