"""The command line of a container, recorded by a fake engine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from agl_programs.commands.agent import CommandAgent
from agl_programs.commands.container import container_engine
from agl_programs.commands.settings import ContainerSection
from agl_testing import ScriptedModelServer

from agentlightning.types import UsageError
from plugins.programs.tests.commands.running import ASK, bench, until

ENGINE = """#!PYTHON
import json, os, sys, time
values = {word: os.environ[word] for word in sys.argv if word in os.environ}
with open("LOG", "a") as log:
    print(json.dumps([sys.argv[1:], values]), file=log)
if "sleep" in sys.argv:
    time.sleep(60)
"""


IN_PLACE = """#!PYTHON
import os, sys
words = sys.argv[sys.argv.index("run") + 1 :]
image = words.index("an-image")
options, command = words[:image], words[image + 1 :]
names = {options[at + 1] for at, word in enumerate(options) if word == "--env"}
mounts = [word.removeprefix("--volume=") for word in options if word.startswith("--volume=")]
volumes = dict(mount.rsplit(":", 1) for mount in mounts)
(folder,) = [place for place, inside in volumes.items() if inside == "/work"]
os.chdir(folder)
inside = {name: value for name, value in os.environ.items() if name in names}
os.execve(sys.executable, [sys.executable, *command[1:]], inside)
"""
"""An engine without containers: it runs ``python …`` in the mounted folder, with the passed variables."""


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
    assert {"OPENAI_BASE_URL", "OPENAI_API_KEY", "TZ", "MINE"} <= passed
    assert not passed & {"PATH", "HOME", "PYTHONPATH"}
    assert seen["OPENAI_API_KEY"] not in " ".join(words)  # values are passed by name
    assert any(word.endswith(":/work") for word in words) and "--workdir=/work" in words


async def test_what_a_program_asks_in_a_container_is_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "bin" / "podman"
    engine.parent.mkdir()
    engine.write_text(IN_PLACE.replace("PYTHON", sys.executable))
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MY_SECRET", "of this machine")
    (tmp_path / "data.txt").write_text("Rome")
    source = (
        ASK + "assert 'MY_SECRET' not in os.environ and 'PATH' not in os.environ\n"
        "ask(open('data.txt').read() + sys.stdin.read())\n"
        "print(json.dumps({'reward': 0.5}))"
    )
    async with ScriptedModelServer() as server, bench(server) as here:
        ran = await here.run(
            ["python", "-c", source],
            {"q": "?"},
            container={"image": "an-image"},
            files=["data.txt"],
            folder=tmp_path,
            stdin="{task.q}",
            reward="json",
        )
        asked = [exchange.body["messages"][0]["content"] for exchange in server.answered()]
    assert ran.rollout.status == "succeeded", ran.attempt.reason
    assert asked == ["Rome?"] and ran.kinds == ["exact"] and [r.value for r in ran.rewards] == [0.5]


@pytest.mark.slow
async def test_a_container_whose_time_is_up_is_killed_by_name(log: Path) -> None:
    async with bench() as here:
        for limit in (4.0, 40.0):  # on a busy machine the engine may begin later than the first
            ran = await here.run(["sleep", "600"], container={"image": "x"}, timeout=limit)
            assert ran.attempt.status == "timeout"
            if log.exists() and f"agl-{ran.attempt.attempt_id}" in log.read_text():
                break
        await until(lambda: f'["kill", "agl-{ran.attempt.attempt_id}"]' in log.read_text())


def test_an_engine_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="podman or docker is not installed here"):
        container_engine(ContainerSection(image="x"), path=str(tmp_path))
    with pytest.raises(UsageError, match="docker is not installed"):
        container_engine(ContainerSection(image="x", engine="docker"), path=str(tmp_path))


def test_auto_prefers_podman(log: Path) -> None:
    assert Path(container_engine(ContainerSection(image="x"))).name == "podman"
    assert CommandAgent(["anything-in-the-image"], container={"image": "x"}).name == "anything-in-the-image"
