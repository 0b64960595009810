"""A run's configuration, from its file to the run: one path, checked once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.bad import ScriptedDriver
from pydantic import model_validator
from typer.testing import CliRunner

from agentlightning import LLM, Trainer, cli
from agentlightning.plugins import manager
from agentlightning.specs import DriverSpec, SectionSpec
from agentlightning.train.config import fields, from_fields
from agentlightning.types.sections import Section

checked: list[str] = []
"""The runs that were checked."""


class Counted(Section):
    """Fields of a plugin, which joins them to the run's own."""

    colour: str = "none"

    @model_validator(mode="after")
    def _count(self) -> Counted:
        checked.append(self.colour)
        return self


async def solve(task: str, llm: LLM) -> float:
    return 0.5


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> manager.Plugins:
    """The plugins of the process, with the section and a driver of this test."""
    loaded = manager.load()
    spec = SectionSpec("counted", "", lambda: Counted)
    monkeypatch.setattr(loaded, "sections", {**loaded.sections, "counted": spec})
    fields()
    checked.clear()  # a default of a section is checked when the sections are joined
    return loaded


def test_agl_train_checks_it_once(
    tmp_path: Path, plugins: manager.Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = ScriptedDriver("http://127.0.0.1:9/v1", "nothing-asks-it")
    spec = DriverSpec("scripted", lambda *_: driver, driver.supported_fields)
    monkeypatch.setattr(plugins, "drivers", {"scripted": spec})
    (tmp_path / "policy").mkdir()
    (tmp_path / "tasks.jsonl").write_text('"a"\n"b"\n')
    (tmp_path / "run.yaml").write_text(
        "agent: {target: 'e2e.test_configuration:solve'}\n"
        "training: {steps: 1, batch_size: 2, recipe: {group_size: 1, baseline: none, scale: none}}\n"
        "environment: {train: {file: tasks.jsonl}, val: {file: tasks.jsonl}}\n"
        "backend: {driver: scripted, policy: policy}\ncolour: red\ntrackers: [files]\noutput: out\n"
    )
    line = ["train", "--config", str(tmp_path / "run.yaml"), "--seed", "3", "--run", "r"]
    done = CliRunner().invoke(cli.app(line), line)
    assert done.exit_code == 3, done.output  # it calls no model, so nothing is learned
    assert json.loads(done.stdout.splitlines()[-1])["seed"] == 3
    assert checked == ["red"]
    assert json.loads((tmp_path / "out" / "r" / "run.json").read_text())["policy"] == str(tmp_path / "policy")


def test_keywords_and_objects_lead_to_the_same_object(plugins: manager.Plugins, tmp_path: Path) -> None:
    given: dict[str, Any] = {"steps": 3, "colour": "blue", "policy": tmp_path}
    made = Trainer(plugins=plugins, **given)
    assert checked == ["blue"]
    again = Trainer.from_config(made.config)
    assert again.config is made.config and checked == ["blue"]
    assert from_fields(given | {"algorithm": "grpo"}, plugins=plugins) == made.config
