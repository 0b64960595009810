"""MCP servers as an agent's tools, over stdio and HTTP, and tasks whose gold calls give their answers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
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
import os, sys, time
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
def break_off(when: str) -> str:
    """Answer, or end or hang."""
    if when == "now":
        os._exit(3)
    while when == "never":
        time.sleep(1)
    return "it is " + when

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
    assert tasks and left_out["no-values"] == 2 and left_out["error"] and left_out["changes"]
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
        assert {one["function"]["name"] for one in body["tools"]} == {"break_off", "buy", "now", "secret"}
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


NO_SERVERS = {
    "nowhere --stdio": "its command line cannot be started: .*nowhere.* Run the command",
    "'half a line": "its command line cannot be started: No closing quotation",
    f"{sys.executable} -c print(1)": "it began no session .*: Connection closed. Run the command",
    "http://127.0.0.1:9/mcp": "it began no session .*: All connection attempts failed",
}


@pytest.mark.parametrize("server", NO_SERVERS)
async def test_what_is_no_server_is_told_by_its_command(server: str) -> None:
    with pytest.raises(mcp.ServerFailed, match=f"^MCP server `{re.escape(server)}`: {NO_SERVERS[server]}"):
        await mcp.write_tasks(server, 1)
    store, agent = SQLiteStore(":memory:"), Agent("clerk", mcp=[server], grade=mcp.grade)
    async with ScriptedModelServer(lambda body: "hi") as engine:
        rollout, _, why = await rolled_out(agent, {"question": "?", "answer": "1"}, store, engine)
    await store.close()
    assert rollout.status == "failed" and f"ServerFailed: MCP server `{server}`: " in str(why)


async def test_an_error_of_the_agents_own_code_stays_what_it_is(command: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mcp.opened(command):
            raise ZeroDivisionError
    with pytest.raises(mcp.ServerFailed, match="the call of break_off failed: Connection closed"):
        async with mcp.opened(command) as tools:
            await tools.call("break_off", {"when": "now"})


@pytest.mark.slow
async def test_a_call_that_ends_or_blocks_the_server_is_an_error_and_other_tasks_are_kept(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"when": ["now", "later", "soon"], "what": ["tea"], "count": [1]}
    tasks, left_out = await mcp.write_tasks(command, 5, values=values, seed=2)
    assert {task["tool"] for task in tasks} == {"break_off", "buy"} and left_out["error"] >= 1
    assert all(task["arguments"] != {"when": "now"} for task in tasks)
    soon, now, never = (
        {"tool": "break_off", "arguments": {"when": when}, "path": "", "answer": f"it is {when}"}
        for when in ("soon", "now", "never")
    )
    monkeypatch.setattr(mcp, "SECONDS", 4.0)
    assert await mcp.unsolvable(command, [soon, now, never, soon]) == [now, never]


async def test_a_server_that_each_call_ends_is_given_up(tmp_path: Path) -> None:
    head, _, break_off, *_ = SERVER.split("@server.tool")
    (tmp_path / "one.py").write_text(f"{head}@server.tool{break_off}\nserver.run('stdio')\n")
    with pytest.raises(mcp.ServerFailed, match="the call of break_off failed: "):
        await mcp.write_tasks(f"{sys.executable} {tmp_path / 'one.py'}", 9, values={"when": ["now"]})


async def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "SECONDS", 0.3)
    server = f"{sys.executable} -c 'import time; time.sleep(600)'"
    with pytest.raises(mcp.ServerFailed, match=r"no answer within 0.3 s. Run the command"):
        await mcp.write_tasks(server, 1)


def test_a_signal_ends_the_writing_and_its_server(tmp_path: Path) -> None:
    hangs = "import os, time; print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
    command = [sys.executable, "-m", "agl_examples.bundled.mcp", f'{sys.executable} -c "{hangs}"']
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None
            threading.Event().wait(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None and process.stderr.read() == "agl: interrupted\n"
    assert process.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["nowhere"], "agl: MCP server `nowhere`: its command line cannot be started"),
        ([f"{sys.executable} -c print(1)"], "agl: MCP server `.*`: it began no session"),
        (["nowhere", "--values", "no.json"], "agl: --values no.json: .*No such file.*it is a JSON object"),
        (["nowhere", "--values", "text.json"], "agl: --values text.json: Expected `array`, got `str`"),
        (["nowhere", "--values", "half.json"], "agl: --values half.json: "),
    ],
)
def test_the_command_tells_what_is_wrong_without_a_traceback(
    given: list[str], told: str, tmp_path: Path
) -> None:
    (tmp_path / "text.json").write_text('{"when": "now"}')
    (tmp_path / "half.json").write_text('{"when": ')
    command = [sys.executable, "-m", "agl_examples.bundled.mcp", *given]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and re.match(told, done.stderr) and "Traceback" not in done.stderr
