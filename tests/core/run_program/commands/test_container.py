"""The command line of a container, recorded by a fake engine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from core.run_program.commands.running import bench, until

from agentlightning.run_program.commands.agent import CommandAgent
from agentlightning.run_program.commands.container import container_engine
from agentlightning.run_program.commands.settings import ContainerSection
from agentlightning.types import UsageError

ENGINE = """#!PYTHON
import json, os, sys, time
values = {word: os.environ[word] for word in sys.argv if word in os.environ}
with open("LOG", "a") as log:
    print(json.dumps([sys.argv[1:], values]), file=log)
if "sleep" in sys.argv:
    time.sleep(60)
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake podman first on PATH; the file that it writes."""
    engine, file = tmp_path / "bin" / "podman", tmp_path / "log"
    engine.parent.mkdir()
    engine.write_text(ENGINE.replace("PYTHON", sys.executable).replace("LOG", str(file)))
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}{os.pathsep}{os.environ['PATH']}")
    return file


async def test_the_program_runs_in_a_container(log: Path) -> None:
    container = {"image": "python:3", "options": ["--memory=1g"]}
    async with bench() as here:
        ran = await here.run(
            ["python", "app.py", "{task.q}"],
            {"q": "a b"},
            container=container,
            env={"TZ": "UTC", "MINE": "1"},
            reward="exit-status",
        )
    assert ran.rollout.status == "succeeded", ran.attempt.reason
    ((words, seen),) = [json.loads(line) for line in log.read_text().splitlines()]
    assert words[:4] == ["run", "--rm", "--init", "--interactive"]
    assert words[4] == f"--name=agl-{ran.attempt.attempt_id}" and "--network=host" in words
    assert words[-5:] == ["--memory=1g", "python:3", "python", "app.py", "a b"]
    passed = {words[at + 1] for at, word in enumerate(words) if word == "--env"}
    assert {"OPENAI_BASE_URL", "OPENAI_API_KEY", "AGL_TASK", "AGL_TASK_Q", "TZ", "MINE"} <= passed
    assert not passed & {"PATH", "HOME", "PYTHONPATH"}
    assert seen["OPENAI_API_KEY"] not in " ".join(words)  # values are passed by name
    assert any(word.endswith(":/work") for word in words) and "--workdir=/work" in words


async def test_a_container_whose_time_is_up_is_killed_by_name(log: Path) -> None:
    async with bench() as here:
        ran = await here.run(["sleep", "60"], container={"image": "x"}, timeout=4.0)
        assert ran.attempt.status == "timeout"
        await until(lambda: f'["kill", "agl-{ran.attempt.attempt_id}"]' in log.read_text())


def test_an_engine_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="podman or docker is not installed here"):
        container_engine(ContainerSection(image="x"), path=str(tmp_path))
    with pytest.raises(UsageError, match="docker is not installed"):
        container_engine(ContainerSection(image="x", engine="docker"), path=str(tmp_path))


def test_auto_prefers_podman(log: Path) -> None:
    assert Path(container_engine(ContainerSection(image="x"))).name == "podman"
    assert CommandAgent(["anything-in-the-image"], container={"image": "x"}).name == "anything-in-the-image"
