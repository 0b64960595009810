"""Word problems as Harbor's task folders, and an agent with a calculator that works on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agl_programs.harbor import report, trial
from openai import AsyncOpenAI

import agentlightning as agl
from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM

TASK = """version = "1.0"
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 60.0
environment_mode = "shared"
[environment]
memory_mb = 512
"""
DOCKERFILE = "FROM debian:12-slim\nWORKDIR /app\nCOPY README /app/\n"
TEST = """#!/bin/sh
if grep -q '### ANSWER: {result} ###' answer.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
SOLVE = "#!/bin/sh\necho '### ANSWER: {result} ###' > answer.txt\n"
TURNS = 3
CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculate the value of an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


def write(folder: Path, count: int) -> None:
    """Write task folders."""
    for number, problem in enumerate(load("generated:train", count)):
        files = {
            "task.toml": TASK,
            "instruction.md": f"{problem['question']}\n\n{ANSWER_FORM}",
            "environment/Dockerfile": DOCKERFILE,
            "environment/README": "The answer goes to answer.txt.\n",
            "tests/test.sh": TEST.format(**problem),
            "solution/solve.sh": SOLVE.format(**problem),
        }
        for name, text in files.items():
            path = folder / f"problem-{number:03}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)


@agl.rollout
async def solve(task: Mapping[str, Any], llm: agl.LLM) -> float:
    """Answer into a file of the task's environment; the task's own tests give the reward."""
    messages: list[Any] = [
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": task["instruction"]},
    ]
    tools: Any = [CALCULATE]
    async with trial(task) as one, AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(TURNS):
            answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=tools)
            message = answer.choices[0].message
            one.write("answer.txt", message.content or "")
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": _calculated(call)})
        return report(await one.grade())


def _calculated(call: Any) -> str:
    try:
        return calculate_text(str(json.loads(call.function.arguments)["expression"]))
    except (ValueError, KeyError, TypeError) as error:
        return f"no call of the calculator: {error}"
