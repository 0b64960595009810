"""Where the doctor finds that what the reward compares with reaches the agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agl_testing.doctor.checks.private_fields import check_private_fields
from agl_testing.doctor.report import Notes

from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config
from agentlightning.types import PromptTemplate

TASKS = [{"question": f"what is {n}?", "answer": f"it is {n}", "query": f"q{n}"} for n in range(5)]
GRADING = """
def by_answer(task, result):
    return float(task["answer"] in result.stdout)

def by_query(task, result):
    return float(task.get("query") == result.stdout)

async def solve(task):
    return 1.0
"""


def warnings_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any], **environment: Any
) -> list[str]:
    """The warnings for a configured run in ``folder``."""
    (folder / "grading_of_fields.py").write_text(GRADING)
    monkeypatch.syspath_prepend(folder)
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    described = {
        "agent": agent,
        "backend": {"policy": {"p": {"endpoint": "http://127.0.0.1:9/v1", "model": "m"}}},
        "training": {"steps": 0},
        "environment": {"val": {"file": "tasks.jsonl"}, **environment},
    }
    (folder / "run.yaml").write_text(json.dumps(described))
    notes = Notes()
    configured = configure(load_config(folder / "run.yaml"))
    check_private_fields(notes, configured)
    return notes.problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ({"command": ["ls", "{task.question}"], "reward": "grading_of_fields:by_answer"}, None),
        ({"command": ["ls", "{task.answer}"], "reward": "grading_of_fields:by_answer"}, "in its arguments"),
        ({"command": "ls {task}", "reward": "grading_of_fields:by_answer"}, "whole task, answer included"),
        ({"command": ["ls", "{task.query}"], "reward": "grading_of_fields:by_answer"}, None),  # the question
        ({"command": ["ls", "{task.query}"], "reward": "grading_of_fields:by_query"}, "{task.query}"),
        ({"command": ["ls", "{task.answer}"], "reward": "exit-status"}, "in its arguments"),
        (
            {"command": ["ls"], "reward": "json", "program": {"stdin": "{task.answer}"}},
            "in its standard input",
        ),
        (
            {"command": ["ls"], "reward": "json", "program": {"env": {"A": "{task.answer}"}}},
            "in the variable A",
        ),
        ({"command": ["cat", "tasks.jsonl"], "reward": "json"}, "tasks.jsonl, in which answer"),
        ({"command": ["ls"], "reward": "json", "program": {"files": ["."]}}, "copy.txt, in which answer"),
        ({"target": "grading_of_fields:solve"}, None),
    ],
)
def test_where_a_field_of_the_reward_reaches_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any], said: str | None
) -> None:
    (tmp_path / "copy.txt").write_text("\n".join(task["answer"] for task in TASKS))
    found = warnings_of(tmp_path, monkeypatch, agent)
    assert (said is None) == (not found) and (said is None or said in " ".join(found)), found


def test_an_agent_in_python_gets_private_fields_with_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = {"target": "grading_of_fields:solve"}
    [found] = warnings_of(tmp_path, monkeypatch, agent, private=["answer"])
    assert "whole task with answer" in found


def test_a_prompt_that_holds_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").touch()
    assert not warnings_of(tmp_path, monkeypatch, {"target": "grading_of_fields:solve"})
    configured = configure(load_config(tmp_path / "run.yaml"))
    configured.trainer.initial_resources["hint"] = PromptTemplate(template="{question}: it is {answer}")
    notes = Notes()
    check_private_fields(notes, configured)
    assert "the resource hint puts answer into the prompt" in " ".join(notes.problems)
