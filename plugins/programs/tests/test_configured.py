"""``agent.command`` in a run's description."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from agl_programs.commands.agent import CommandAgent
from agl_testing import ScriptedModelServer

from agentlightning.train.configured import check_agent_takes, configure, load_agent
from agentlightning.train.run_file import load_config
from agentlightning.types.base import ConfigError


def described(folder: Path, agent: dict[str, Any], **sections: Any) -> Path:
    file = folder / "run.yaml"
    policy = {"p": {"endpoint": "http://127.0.0.1:9/v1", "model": "m"}}
    file.write_text(json.dumps({"agent": agent, "backend": {"policy": policy}, **sections}))  # JSON is YAML
    return file


def loaded(folder: Path, agent: dict[str, Any]) -> CommandAgent:
    found = load_agent(load_config(described(folder, agent)))
    assert isinstance(found, CommandAgent)
    return found


def test_a_command_of_words_or_a_line(tmp_path: Path) -> None:
    agent = loaded(tmp_path, {"command": [sys.executable, "app.py"], "reward": "json"})
    assert agent.name == "app" and agent.folder == tmp_path and not agent.command.is_shell
    assert loaded(tmp_path, {"command": "cd x && ls", "name": "lister"}).name == "lister"
    program = {"stdin": "{task}", "files": ".", "env": {"A": "b"}, "pass_env": "X_*", "keep": "kept"}
    agent = loaded(tmp_path, {"command": "ls", "reward": {"file": "out", "key": "a"}, "program": program})
    assert agent.program.files == ["."] and agent.reward.section is not None
    agent = loaded(tmp_path, {"command": "ls", "reward": {"function": "statistics:mean"}})
    assert agent.reward.function is not None
    agent = loaded(tmp_path, {"command": "ls", "reward": "exit-status"})
    assert agent.reward.exit_status


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"command": ["ls"], "target": "a:b"}, "agent: give either target"),
        ({"reward": "json", "target": "a:b"}, "reward and program belong to a command"),
        ({}, "agent.target: Field required"),
        ({"command": ["ls"], "program": {"stdn": "x"}}, "stdn.*Did you mean 'stdin'"),
        ({"command": ["ls"], "reward": {"keys": "x"}}, "keys.*Did you mean 'key'"),
        ({"command": ["ls"], "reward": {}}, "reward: give key, file or function"),
        ({"command": ["ls"], "reward": {"file": "../x"}}, "inside the working folder"),
        ({"command": ["ls"], "program": {"container": {"image": "x", "engine": "lxc"}}}, "engine"),
        ({"command": ["ls", 3]}, "command"),
        ({"command": "echo '{task.x}'"}, "agent.command: .* single quotes"),
        ({"command": ["no-such-program"]}, "agent.command: there is no program 'no-such-program'"),
        ({"command": ["ls"], "reward": "no-such-module:f"}, "agent.reward: cannot import"),
        ({"command": ["ls"], "reward": "exit"}, "agent.reward: 'exit' must be written module:object"),
    ],
)
def test_a_wrong_description_is_refused(tmp_path: Path, agent: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_agent(load_config(described(tmp_path, agent)))


@pytest.mark.slow
def test_a_task_without_a_named_field_is_refused_before_the_run(tmp_path: Path) -> None:
    agent = loaded(tmp_path, {"command": "echo {task.a}", "program": {"stdin": "{task.b}"}})
    check_agent_takes(agent, [{"a": 1, "b": 2}], "environment.train")
    message = (
        r"agent.command: \{task.b\}: there is no 'b' in the task; it has a \(task 1 of environment.val\)"
    )
    with pytest.raises(ConfigError, match=message):
        check_agent_takes(agent, [{"a": 1, "b": 2}, {"a": 1}], "environment.val")


@pytest.mark.slow
def test_a_private_field_is_guarded_at_load(tmp_path: Path) -> None:
    """A command that names one is refused, and so is a name that no task has."""
    (tmp_path / "tasks.jsonl").write_text('{"q": "2 + 3", "answer": 5}\n')
    more = {"training": {"steps": 0}, "environment": {"val": {"file": "tasks.jsonl"}, "private": ["answer"]}}
    for command in ("echo {task.answer}", "echo {task}"):
        with pytest.raises(ConfigError, match=r"agent.command: .* is private"):
            load_agent(load_config(described(tmp_path, {"command": command}, **more)))
    config = load_config(described(tmp_path, {"command": "echo {task.q}"}, **more))
    assert configure(config).val == [{"q": "2 + 3", "answer": 5}]
    more["environment"]["private"] = ["answr"]
    config = load_config(described(tmp_path, {"command": "echo {task.q}"}, **more))
    with pytest.raises(ConfigError, match="no task has a field 'answr'; they have answer, q"):
        configure(config)


def agl_eval(folder: Path, server: ScriptedModelServer, command: str) -> subprocess.Popen[bytes]:
    (folder / "tasks.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    policy = {"p": {"endpoint": server.url, "model": server.model}}
    file = described(
        folder,
        {"command": command, "reward": "exit-status"},
        backend={"policy": policy},
        environment={"val": {"file": "tasks.jsonl"}},
    )
    agl = str(Path(sys.executable).parent / "agl")
    environment = {k: v for k, v in os.environ.items() if k != "AGL_PLUGINS"}
    return subprocess.Popen(
        [agl, "eval", "--config", str(file)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    with ScriptedModelServer() as server:
        running = agl_eval(tmp_path, server, f"echo $$ > {tmp_path}/pid-{{task.n}}; sleep 600")
        files = [tmp_path / "pid-1", tmp_path / "pid-2"]
        try:
            for _ in range(1200):
                if all(file.exists() and file.read_text().strip() for file in files):
                    break
                assert running.poll() is None, running.communicate()
                time.sleep(0.05)
            pids = [int(file.read_text()) for file in files]
            assert all(os.getsid(pid) == pid for pid in pids)  # a terminal's Ctrl-C does not reach them
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=300)
        finally:
            running.kill()
    assert running.returncode == 130
    assert not any(psutil.pid_exists(pid) for pid in pids)
