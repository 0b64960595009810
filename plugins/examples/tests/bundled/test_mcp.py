"""MCP servers as an agent's tools, over stdio and HTTP, and tasks whose gold calls give their answers."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server.fastmcp", reason="the server of the tests is written for mcp 1")

from agl_testing import ScriptedModelServer, tool_call
from contract.running import rolled_out

from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError
from agl_examples.bundled import mcp
from agl_examples.bundled.agent import Agent

SERVER = '''
import sys, time
from mcp.server.fastmcp import FastMCP
server = FastMCP("shop", log_level="WARNING", port=int(sys.argv[2]) if sys.argv[2:] else 0)
bought = []

@server.tool(structured_output=False)
def buy(what: str, count: int = 1) -> dict:
    """Buy something, and see what it costs."""
    if what == "nothing":
        raise ValueError("nothing is not sold")
    bought.append(what)
    return {"what": what, "cents": len(what) * 25, "basket": {"size": len(bought)}}

@server.tool(structured_output=False)
def now() -> str:
    """Tell the time."""
    return str(time.time_ns())

@server.tool(structured_output=False)
def secret(word: str) -> str:
    """Needs a word that nobody knows."""
    return word

server.run(sys.argv[1])
'''
VALUES = {"what": ["tea", "bread", "nothing"]}


@pytest.fixture
def command(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SERVER)
    return f"{sys.executable} {tmp_path / 'shop.py'} stdio"


@pytest.fixture
def address(command: str) -> Iterator[str]:
    """The same server over HTTP."""
    import subprocess

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*command.split()[:-1], "streamable-http", str(port)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                threading.Event().wait(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.terminate()


async def test_tasks_are_solved_by_their_gold_calls(command: str) -> None:
    tasks, left_out = await mcp.write_tasks(command, 8, values=VALUES, seed=1)
    assert tasks and left_out["no-values"] == 1 and left_out["error"] and left_out["changes"]
    for task in tasks:
        assert task["tool"] == "buy" and task["arguments"]["what"] in ("tea", "bread")
        assert (task["path"], task["answer"]) in {("cents", "75"), ("cents", "125"), ("basket.size", "1")}
        assert mcp.grade(task, f"It is <answer> {task['answer']} </answer>.") == 1.0
        assert mcp.grade(task, "<answer>7</answer>") == 0.0
    costs = next(task for task in tasks if task["path"] == "cents")
    assert await mcp.unsolvable(command, [costs, {**costs, "answer": "1"}]) == [{**costs, "answer": "1"}]


@pytest.mark.parametrize("way", ["command", "address"])
async def test_an_agent_uses_them_and_a_rollouts_server_is_its_own(
    way: str, request: pytest.FixtureRequest
) -> None:
    def reply(body: dict[str, Any]) -> Any:
        told = [one["content"] for one in body["messages"] if one["role"] == "tool"]
        assert {one["function"]["name"] for one in body["tools"]} == {"buy", "now", "secret"}
        if len(told) == 2:
            return f"<answer>{json.loads(told[1])['cents']}</answer>"
        return tool_call("buy", {"what": "tea" if told else "nothing"})

    agent = Agent("clerk", "Use the tools.", mcp=[request.getfixturevalue(way)], grade=mcp.grade)
    store = SQLiteStore(":memory:")
    try:
        async with ScriptedModelServer(reply) as engine:
            for _ in range(2):
                task = {"question": "What does tea cost?", "answer": "75"}
                rollout, record, why = await rolled_out(agent, task, store, engine)
                assert rollout.status == "succeeded", why
                assert [one.kind for one in verdicts(record).values()] == ["exact"] * 3
                assert [one.value for one in record.rewards] == [1.0]
                failed, bought = (one["content"] for one in record.calls[2].request["messages"][-3::2])
                assert "nothing is not sold" in failed
                if way == "command":
                    assert json.loads(bought)["basket"]["size"] == 1
    finally:
        await store.close()


async def test_without_the_library_its_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match="pip install 'mcp"):
        async with mcp.opened("server"):
            pass
