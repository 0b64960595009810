"""``agl init``: a folder with an agent, tasks, a configuration and a test, which trains as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from agentlightning.bundled.task_set import task_set
from agentlightning.cli.view import print_json
from agentlightning.types import UsageError

CONFIG = """\
# agl train --config config.yaml        The keys: docs/run_config.schema.json, or `agl train --help`.
agent: {target: agent:solve, name: my-agent, concurrency: 64}
training: {algorithm: grpo, steps: 12, batch_size: 8, recipe: {group_size: 8}}
environment:
  train: {file: train.jsonl}
  val: {file: val.jsonl}
backend:
  driver: local
  policy: tiny          # comes with agl-local and knows these tasks only; or a folder
  options: {lr: 1.0e-4, max_num_seqs: 64, max_len: 512}
pythonpath: [.]
"""
AGENT = '''\
"""The agent: it asks the model, runs the tools that the model calls, and is graded."""

import agentlightning as agl
from agentlightning.bundled.math import calculate, grade

solve = agl.Agent("my-agent", "Use the calculator.", tools=[calculate], grade=grade)
'''
TEST = '''\
"""The grader gives right answers 1 and others 0."""

import json
from pathlib import Path

from agent import solve

TASKS = [json.loads(line) for line in Path(__file__).with_name("val.jsonl").read_text().splitlines()]


def test_right_answers_are_rewarded() -> None:
    for task in TASKS:
        assert solve.score(task, f"### ANSWER: {task['answer']} ###") == 1.0
        assert solve.score(task, "### ANSWER: no ###") == 0.0
'''


def register(app: typer.Typer) -> None:
    @app.command("init")
    def init(
        folder: Annotated[Path, typer.Argument(help="A new or empty folder.")] = Path("my-agent"),
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Write a project that trains as it is: agent.py, config.yaml, tasks, and a test. Then change it."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not empty: give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        math = task_set("math")
        files = {"config.yaml": CONFIG, "agent.py": AGENT, "test_agent.py": TEST}
        for name, tasks in (("train.jsonl", math.train), ("val.jsonl", math.val)):
            files[name] = "".join(json.dumps(task) + "\n" for task in tasks)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        if as_json:
            print_json({"folder": str(folder), "files": sorted(files)})
        else:
            print(
                f"{folder}: {', '.join(sorted(files))}\nNext: cd {folder} && agl train --config config.yaml"
            )
