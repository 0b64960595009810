"""Options are checked before anything is opened; the program gets no secret of the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from agl_programs.inside.settings import ChildSettings
from agl_programs.options import ProgramOptions, read_input, read_tags, read_tasks
from agl_programs.process import SWITCHES, environment
from agl_testing import ScriptedModelServer
from hypothesis import given as for_any, strategies as st
from msgspec.structs import replace

from agentlightning.child_environment import child_environment
from agentlightning.keys import CONTEXT_KEY
from agentlightning.types import UsageError
from plugins.programs.tests.running import run

ENGINE = {"upstream": "http://127.0.0.1:1/v1", "model": "m"}
SETTINGS = ChildSettings(
    rollout_id="ro",
    attempt_id="at",
    key="agl-key",
    gateway="http://127.0.0.1:2/v1",
    store="http://127.0.0.1:3",
)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"command": []}, "no program to run"),
        ({"upstream": None}, "name the model"),
        ({"policy": Path("p")}, "name the model"),
        ({"model": None}, "--model"),
        ({"api_key_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
        ({"upstream": None, "policy": Path("/nowhere")}, "Hugging Face"),
        ({"reward_file": "same", "tasks": [1, 2], "concurrency": 2}, "share one file"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ProgramOptions(**{"command": [sys.executable], **ENGINE, **wrong}).check()


@pytest.mark.plugins
@pytest.mark.parametrize("name", ["tiny", "examples/quickstart/policy"])
def test_a_policy_is_a_folder_or_a_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    options = ProgramOptions(command=[sys.executable], policy=Path(name)).check()
    assert (options.policy_folder() / "config.json").is_file()


def test_a_tasks_file_is_split_at_line_feeds(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('\ufeff{"q": "a\u2028b\x85c"}\r\n\n2\n', encoding="utf-8")
    assert read_tasks(file) == [{"q": "a\u2028b\x85c"}, 2]
    file.write_text('1\n{"q": \n')
    with pytest.raises(UsageError, match=r"--tasks .*tasks\.jsonl:2: not valid JSON"):
        read_tasks(file)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "apps/my app.py", "--x"], "my-app"),
        (["/usr/bin/env"], "env"),
        (["python", "-m", "my.module"], "python"),
        (["…"], "program"),
    ],
)
def test_the_folder_is_named_after_the_program(command: list[str], name: str) -> None:
    assert ProgramOptions(command=command).name == name


def test_tasks_are_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"a": 1}\n\n"text"\n')
    assert read_tasks(file) == [{"a": 1}, "text"]
    file.write_text("1\n{")
    with pytest.raises(UsageError, match=r"t\.jsonl:2: not valid JSON"):
        read_tasks(file)
    file.write_text("\n")
    with pytest.raises(UsageError, match="no task"):
        read_tasks(file)
    with pytest.raises(UsageError, match="missing"):
        read_tasks(tmp_path / "missing")


def test_inputs_tags_and_placeholders() -> None:
    assert [read_input("1"), read_input("[1]"), read_input("a text")] == [1, [1], "a text"]
    assert read_tags(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(UsageError, match="key=value"):
        read_tags(["a"])
    options = ProgramOptions(command=["p", "--q={task}", "{}"])
    assert options.arguments({"ä": 1}) == ["p", '--q={"ä": 1}', "{}"] and options.arguments("t")[1] == "--q=t"


@for_any(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3), st.integers() | st.text())
def test_settings_survive_the_environment(tags: dict[str, str], task: Any) -> None:
    given = replace(SETTINGS, tags=tags, task=task)
    assert ChildSettings.read(given.variables(["openai"])) == given


def test_secrets_are_kept_back_and_keys_of_other_engines_stay() -> None:
    base = {"AGL_SECRET": "s", "AGL_TOKEN": "t", "OPENAI_API_KEY": "sk-user", "VENDOR": "sk-vendor", "A": "b"}
    found = environment(child_environment(base), SETTINGS, ["openai"], "VENDOR")
    assert found["A"] == "b" and found["OPENAI_BASE_URL"] == SETTINGS.gateway
    assert found["OPENAI_API_KEY"] == found["VENDOR"] == found["ANTHROPIC_API_KEY"] == "agl-key"
    assert found["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:2"
    assert not {"s", "t", "sk-user", "sk-vendor"} & set(found.values())
    theirs = environment({"ANTHROPIC_API_KEY": "sk-ant"}, SETTINGS, [])
    assert theirs["ANTHROPIC_API_KEY"] == "sk-ant" and "ANTHROPIC_BASE_URL" not in theirs


def test_switches_of_frameworks_are_set_unless_the_user_has_set_one() -> None:
    first, second = SWITCHES
    assert environment({}, SETTINGS, [])[first] == environment({}, SETTINGS, [])[second] == "true"
    own = environment({first: "false"}, SETTINGS, [])
    assert own[first] == "false" and second not in own


def test_a_proxy_is_not_in_the_way() -> None:
    found = environment({"https_proxy": "http://proxy:1", "NO_PROXY": "intra"}, SETTINGS, [])
    assert found["NO_PROXY"] == found["no_proxy"] == "intra,127.0.0.1,localhost,::1"  # readers prefer either
    assert "NO_PROXY" not in environment({}, SETTINGS, [])


def test_entries_put_their_own_keys_in_place() -> None:
    assert environment({}, replace(SETTINGS, per_entry=True), [])["OPENAI_API_KEY"] == CONTEXT_KEY


@pytest.mark.slow
async def test_keys_are_neither_on_a_command_line_nor_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENDOR_KEY", "sk-of-the-vendor")
    monkeypatch.setenv("AGL_SECRET", "a secret of sixteen bytes or more")
    place = tmp_path / "seen"
    source = f"""
import os, sys
from openai import OpenAI
OpenAI().chat.completions.create(model="any", messages=[{{"role": "user", "content": "hi"}}])
with open({str(place)!r}, "w") as file:
    print(*sys.argv, *(open(f"/proc/{{p}}/cmdline").read() for p in ("self", os.getppid())), file=file)
    print(*os.environ.values(), file=file)
"""
    with ScriptedModelServer() as server:
        outcome = await run(tmp_path, source, server, api_key_env="VENDOR_KEY")
        assert server.log[0].headers["authorization"] == "Bearer sk-of-the-vendor"
    assert outcome.kinds == ["exact"]
    commands, variables = place.read_text().split("\n", 1)
    assert "sk-of-the-vendor" not in commands + variables and "a secret of" not in commands + variables
    key = next(word for word in variables.split() if word.startswith("agl-"))
    assert key not in commands
    for file in (tmp_path / "runs").rglob("*"):
        if file.is_file():
            assert b"sk-of-the-vendor" not in file.read_bytes() and key.encode() not in file.read_bytes()


async def test_arguments_are_not_on_record(tmp_path: Path) -> None:
    with ScriptedModelServer() as server:
        outcome = await run(tmp_path, "pass", server, "--password=hunter2")
    assert outcome.summary.exit_codes == [0]
    assert "hunter2" not in str(outcome.records[0].rollout.metadata)
    for file in (tmp_path / "runs").rglob("*"):
        assert not file.is_file() or b"hunter2" not in file.read_bytes()
