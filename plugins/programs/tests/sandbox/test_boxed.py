"""A program of ``agent.command`` in a sandbox: its calls, its reward, its limits, what it does not reach."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from agl_programs.commands.agent import CommandAgent
from agl_programs.commands.result import CommandResult
from agl_programs.commands.settings import ProgramSection, RewardSection
from agl_programs.sandbox import bubblewrap
from agl_testing import ScriptedModelServer
from pydantic import ValidationError

from agentlightning.types import UsageError
from plugins.programs.tests.commands.running import ASK, bench, python
from plugins.programs.tests.sandbox import run as trial

SEEN: list[CommandResult] = []
EVENT = """
body = json.dumps({"event_type": "reward", "data": {"value": 0.75}}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["AGL_KEY"]}
urllib.request.urlopen(urllib.request.Request(os.environ["AGL_EVENT_URL"], body, headers)).read()
"""


def look(result: CommandResult) -> float:
    SEEN[:] = [result]
    return 0.5


async def test_a_programs_calls_are_exact_and_nothing_else_answers(
    bwrap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "of this machine")
    (tmp_path / "app.py").write_text(
        ASK + "import socket\nask(sys.argv[1])\n"
        "found = []\n"
        "for port in map(int, sys.argv[2:]):\n"
        "    try: socket.create_connection(('127.0.0.1', port), 5); found.append(port)\n"
        "    except OSError: pass\n"
        "print(json.dumps([found, sorted(os.environ), os.listdir('/tmp'), os.getcwd(), os.listdir('.')]))\n"
    )
    with ScriptedModelServer() as server:
        async with bench(server) as here:
            ports = [url.rsplit(":", 1)[1].partition("/")[0] for url in (here.gateway.url, server.url)]
            ran = await here.run(
                [sys.executable, "app.py", "{task.q}", *ports, "8801"],
                {"q": "?", "answer": "gold"},
                folder=tmp_path,
                sandbox={"memory": "512MB"},
                reward=look,
            )
        asked = [exchange.body["messages"][0]["content"] for exchange in server.answered()]
    assert ran.rollout.status == "succeeded", ran.attempt.reason
    assert asked == ["?"] and ran.kinds == ["exact"]
    found, variables, tmp, where, files = json.loads(SEEN[0].stdout)
    python = {path.parts[2] for path in map(Path, (sys.prefix, sys.base_prefix)) if path.parts[1] == "tmp"}
    assert found == [8801] and {*tmp} - python == {"home"} and where == bubblewrap.FOLDER and files == []
    assert "MY_SECRET" not in variables and "PYTHONPATH" not in variables and "AGL_HERE" not in variables


@pytest.mark.parametrize("way", ["file", "event"])
async def test_a_program_without_a_judge_tells_its_reward(bwrap: None, way: str) -> None:
    tell = {"file": "open(os.environ['AGL_REWARD_FILE'], 'w').write('0.75')\n", "event": EVENT}[way]
    with ScriptedModelServer() as server:
        async with bench(server) as here:
            ran = await here.run(python(ASK + "ask()\n" + tell), sandbox={})
    assert ran.rollout.status == "succeeded", ran.attempt.reason
    assert [reward.value for reward in ran.rewards] == [0.75] and ran.kinds == ["exact"]


async def test_what_passes_a_limit_fails_by_its_name(bwrap: None) -> None:
    limits = {"memory": "64MB", "seconds": 30.0}
    source = "import os, time\nfor _ in range(4): os.fork()\nx = bytearray(b'1') * (40 << 20)\ntime.sleep(60)"
    async with bench() as here:
        for reward in ("exit-status", "json", None):
            ran = await here.run(python(source), sandbox=limits, reward=reward)
            assert ran.attempt.status == "failed"
            assert "passed a limit of its sandbox: memory" in str(ran.attempt.reason)
        ran = await here.run(python(source), sandbox=limits, reward=look)
        assert ran.rollout.status == "succeeded" and SEEN[0].ended == "memory"
    assert ran.command["agl.command.ended"] == "memory"


async def test_a_link_of_the_program_leads_its_judge_nowhere(bwrap: None, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("0.9")
    async with bench() as here:
        command = ["sh", "-c", f"ln -s {tmp_path}/answer out; mkfifo pipe"]
        ran = await here.run(command, sandbox={}, reward=RewardSection(file="out"))
    assert ran.attempt.status == "failed" and "no file out" in str(ran.attempt.reason)


@pytest.mark.slow
async def test_when_its_time_is_up_no_process_is_left(bwrap: None) -> None:
    mark = f"boxed-{os.getpid()}"
    command = ["sh", "-c", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600' & sleep 600", mark]
    async with bench() as here:
        ran = await here.run(command, sandbox={}, timeout=3.0)
    assert ran.attempt.status == "timeout" and not trial.marked(mark)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ({"sandbox": {}, "container": {"image": "x"}}, "either container or sandbox"),
        ({"sandbox": {"image": "x"}}, "sandbox.image is for agl.Sandbox"),
        ({"sandbox": {"memory": "much"}}, "sandbox.memory"),
    ],
)
def test_what_does_not_go_together_is_refused(program: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ProgramSection(**program)


def test_without_bubblewrap_the_run_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap.check.cache_clear()
    with pytest.raises(UsageError, match="bubblewrap"):
        CommandAgent(["true"], sandbox={})
    bubblewrap.check.cache_clear()
