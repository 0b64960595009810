"""``agl init``: a folder with an agent, tasks, a configuration and a test, which trains as it is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from agentlightning.terminal import print_json
from agentlightning.train.config import fields
from agentlightning.types import UsageError
from agl_examples.bundled.task_set import task_set

CONFIG = """\
# yaml-language-server: $schema=config.schema.json
# agl train --config config.yaml        config.schema.json describes every key, for editors too
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
from agl_examples.bundled.math import calculate, grade

solve = agl.Agent("my-agent", "Use the calculator.", tools=[calculate], grade=grade)
'''
ASK = '''\
"""Ask the agent some tasks at a served model: python ask.py http://127.0.0.1:8000/v1"""

import asyncio
import json
import sys
import time
import urllib.request
from pathlib import Path

import agentlightning as agl
from agent import solve

LINES = Path(__file__).with_name("val.jsonl").read_text(encoding="utf-8").split("\\n")
TASKS = [json.loads(line) for line in LINES if line]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is here: no proxy between


def models(endpoint: str) -> list[str]:
    """The names that the server gives its models. A server that has just been started is waited for."""
    for left in reversed(range(1200)):
        try:
            with DIRECT.open(f"{endpoint}/models", timeout=10) as answer:
                return [model["id"] for model in json.load(answer)["data"]]
        except OSError as error:
            if not left:
                raise SystemExit(f"nothing answers at {endpoint}: {error}") from error
            time.sleep(0.5)
    return []


async def main(endpoint: str) -> None:
    model, *_ = models(endpoint)
    print(f"{endpoint} serves {model}", flush=True)
    for task in TASKS[:3]:
        answer = await solve.answer(task, agl.LLM(endpoint=endpoint, model=model))
        print(f"{task['question'].partition(chr(10))[0]}\\n  {answer}  reward {solve.score(task, answer):g}")


asyncio.run(main(sys.argv[1]))
'''
TEST = '''\
"""The grader gives right answers 1 and others 0."""

import json
from pathlib import Path

from agent import solve

LINES = Path(__file__).with_name("val.jsonl").read_text(encoding="utf-8").split("\\n")
TASKS = [json.loads(line) for line in LINES if line]


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
        """Write a project that trains as it is: agent, configuration, tasks, a test. Then change it."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not empty: give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        math = task_set("math")
        schema = json.dumps(run_config_schema(), indent=1, ensure_ascii=False) + "\n"
        files = {
            "config.yaml": CONFIG, "config.schema.json": schema, "agent.py": AGENT, "ask.py": ASK,
            "test_agent.py": TEST,
        }  # fmt: skip
        for name, tasks in (("train.jsonl", math.train), ("val.jsonl", math.val)):
            files[name] = "".join(json.dumps(task) + "\n" for task in tasks)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        if as_json:
            print_json({"folder": str(folder), "files": sorted(files)})
        else:
            print(
                f"{folder}: {', '.join(sorted(files))}\n"
                f"Next: cd {shlex.quote(str(folder))}; agl doctor --config config.yaml; "
                "agl train --config config.yaml"
            )


def run_config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a run's file, by which editors complete and check it, in plain text:
    docstrings without the markup of Sphinx. A file names it in its first line: ``# yaml-language-server:
    $schema=…``.
    """
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **fields().model.model_json_schema()}
    schema["required"] = ["agent", "backend"]
    found: dict[str, Any] = _plain(schema)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if key != "title"}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\s+", " ", re.sub(r":\w+:`[.~]?([^`]*)`", r"`\1`", value)).replace("``", "`")
    return value
