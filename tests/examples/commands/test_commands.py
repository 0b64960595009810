"""The examples of commands: programs that import nothing of ours, run and rewarded as their files say."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from agl_programs.commands.agent import CommandAgent
from agl_testing import Reply, ScriptedModelServer, tool_call

from agentlightning.train.configured import check_agent_takes, load_agent
from agentlightning.train.run_file import load_config
from plugins.programs.tests.commands.running import bench

HERE = Path(__file__).parents[3] / "examples" / "commands"
TASK = {"question": "Anna keeps (13 + 48) / 2 stamps. How many?", "result": "30.5"}
PROGRAMS = [pytest.param("openai", marks=pytest.mark.slow), "http", "perl"]


def agent_of(name: str, monkeypatch: pytest.MonkeyPatch) -> CommandAgent:
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", folders)
    found = load_agent(load_config(HERE / f"{name}.yaml"))
    assert isinstance(found, CommandAgent)
    check_agent_takes(found, [TASK], "here")
    return found


def answering(expression: str) -> Any:
    """A model that calls the calculator and answers with what it says."""

    def reply(body: dict[str, Any]) -> Reply | str:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return f"### ANSWER: {last['content']} ###"
        assert body["tools"][0]["function"]["name"] == "calculate" and TASK["question"] in last["content"]
        return Reply(message=tool_call("calculate", {"expression": expression}))

    return reply


def test_they_import_nothing_of_ours() -> None:
    for program in HERE.glob("solver*"):
        code = program.read_text()
        assert "agentlightning" not in code and "calc_x" not in code and "import agl" not in code


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("expression", "reward"), [("(13+48)/2", 1.0), ("13-48", 0.0)])
async def test_a_program_uses_its_tool_and_is_rewarded(
    name: str, expression: str, reward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of(name, monkeypatch)
    with ScriptedModelServer(answering(expression)) as server:
        async with bench(server) as here:
            ran = await here.run(agent, TASK, timeout=300)
    assert [one.value for one in ran.rewards] == [reward], (ran.attempt.reason, ran.command)
    assert ran.kinds == ["exact", "exact"]
    assert {call.tags["agent"] for call in ran.record.calls} == {f"command-{name}"}


@pytest.mark.slow
@pytest.mark.parametrize("expression", ["1/0", "system('x')", "2*(3", ""])
async def test_what_is_no_arithmetic_is_an_error_for_the_model(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_of("perl", monkeypatch)
    with ScriptedModelServer(answering(expression)) as server:
        async with bench(server) as here:
            ran = await here.run(agent, TASK, timeout=300)
    assert [one.value for one in ran.rewards] == [0.0]
    last = ran.record.calls[-1].request or {}
    assert json.dumps(last["messages"][-1]).count("error: ") == 1
