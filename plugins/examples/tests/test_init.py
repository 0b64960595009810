"""``agl init`` writes a project whose parts fit together, in the framework that is asked for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from agl_testing import ScriptedModelServer
from typer.testing import CliRunner

from agentlightning import UsageError
from agentlightning.cli import app
from agentlightning.train.configured import load_agent, load_data
from agentlightning.train.run_file import load_config
from agl_examples.init import FRAMEWORKS, TEMPLATES, project

MODULES = {
    "openai": "openai", "langgraph": "langgraph", "langchain": "langchain", "autogen": "autogen_agentchat",
    "openai-agents": "agents", "pydantic-ai": "pydantic_ai", "crewai": "crewai",
    "agent-framework": "agent_framework",
}  # fmt: skip
"""Framework → the module that says whether it is here. AgentScope is left out: version 1 may be here."""


def made(folder: Path, *options: str) -> Path:
    """Run the command."""
    done = CliRunner().invoke(app(["init"]), ["init", str(folder), "--json", *options])
    assert done.exit_code == 0 and json.loads(done.output)["folder"] == str(folder), done.exception
    return folder


@pytest.mark.plugins
@pytest.mark.parametrize("framework", ["openai", "command"])
def test_the_project_is_a_run_and_its_test_passes(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "new", "--framework", framework)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("agent", "grading", "reward", "tools"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    config = load_config(folder / "config.yaml")
    load_agent(config)
    train = load_data(config.environment.train, config, "environment.train")
    val = load_data(config.environment.val, config, "environment.val")
    assert (len(train), len(val), config.backend.policy, config.agent.name) == (160, 48, "tiny", "new")
    assert not {task["question"] for task in train} & {task["question"] for task in val}
    scope = {"__file__": str(folder / "test_agent.py")}
    exec((folder / "test_agent.py").read_text(), scope)
    for name in [name for name in scope if name.startswith("test_")]:
        scope[name]()  # type: ignore[operator]
    for module in ("agent", "grading", "reward", "tools"):
        sys.modules.pop(module, None)


def test_a_program_gets_the_modules_that_it_imports_into_its_folder() -> None:
    """A sandbox has nothing of the project's folder but what the run names."""
    files = dict(project("mine", "command", "tiny"))
    imported = {
        name
        for node in ast.walk(ast.parse(files["agent.py"]))
        if isinstance(node, ast.ImportFrom)
        for name in (f"{node.module}.py",)
        if name in files
    }
    agent = yaml.safe_load(files["config.yaml"])["agent"]
    assert imported == {"tools.py"} and {*agent["program"]["files"]} == {"agent.py", *imported}


@pytest.mark.slow
def test_every_framework_has_an_agent_that_makes_its_client_in_the_rollout() -> None:
    assert {path.stem for path in (TEMPLATES / "agents").glob("*.py")} == {*FRAMEWORKS, "grading"}
    for framework in FRAMEWORKS:
        files = dict(project("mine", framework, "tiny"))
        module = compile(files["agent.py"], "agent.py", "exec")
        assert {*files} >= {"AGENTS.md", "README.md", ".gitignore", "requirements.txt", "config.schema.json"}
        if framework != "command":
            assert not {"endpoint", "api_key"} & {*module.co_names}, "used at import"
            assert "llm.endpoint" in files["agent.py"] and "@agl.rollout" in files["agent.py"]
        assert not [name for name, text in files.items() if "FRAMEWORK" in text]
        assert ("ask.py" in files["README.md"]) == ("ask.py" in files)


@pytest.mark.plugins
def test_the_model_is_the_line_of_the_policy(tmp_path: Path) -> None:
    for model, line in {
        "smollm2": "policy: smollm2  # a folder",
        "Qwen/Qwen3-0.6B": "policy: hub:Qwen/Qwen3-0.6B  # a folder",
        str(tmp_path): f"policy: {tmp_path}  # a folder",
    }.items():
        assert line in dict(project("mine", "openai", model))["config.yaml"]
    for model, why in {
        "gpt-4o": "OpenAI keeps",
        "nowhere": "there is no such folder",
        "./nope": "no such folder",
    }.items():
        with pytest.raises(UsageError, match=why):
            dict(project("mine", "openai", model))
    with pytest.raises(UsageError, match="Did you mean 'langgraph'"):
        dict(project("mine", "langraph", "tiny"))


def test_it_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    found = CliRunner().invoke(app(["init"]), ["init", str(tmp_path)])
    assert isinstance(found.exception, UsageError) and "is not empty" in str(found.exception)


@pytest.mark.parametrize(
    "framework", ["openai", *(pytest.param(one, marks=pytest.mark.slow) for one in [*MODULES][1:])]
)
def test_ask_waits_for_the_server_and_gives_the_agent_tasks(framework: str, tmp_path: Path) -> None:
    if find_spec(MODULES[framework]) is None:
        pytest.skip(f"{framework} is not installed")
    made(tmp_path / "new", "--framework", framework)
    with ScriptedModelServer(lambda body: "### ANSWER: 1 ###", model="served") as server:
        url = server.url
        command = [sys.executable, str(tmp_path / "new" / "ask.py"), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == f"{url} serves served" and len(lines) == 7
    assert all(line.startswith("  ### ANSWER: 1 ###  reward ") for line in lines[2::2])
