"""Ctrl-C while a run waits for rollouts: the finished steps are saved, and the last lines say what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from e2e.test_line import POLICY, THREAD

from agentlightning.algorithms.journal import checkpoints_in

AGENT = """
import asyncio, sys
import openai

async def solve(task, llm, rollout):
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        said = [{"role": "user", "content": "2 + 3"}]
        await client.chat.completions.create(model=llm.model, messages=said, max_tokens=4)
    if "/train/1/" in rollout.group_id:
        print("waits", file=sys.stderr, flush=True)
        await asyncio.Event().wait()
    return float(rollout.sample)
"""
ROLLOUTS = 4
"""Of a step: two tasks, two samples."""


@pytest.mark.slow
@pytest.mark.plugins
def test_ctrl_c_saves_the_steps_and_does_not_warn_of_each_rollout(tmp_path: Path) -> None:
    (tmp_path / "waiting_agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"q": 1}\n{"q": 2}\n')
    config = {
        "agent": {"target": "waiting_agent:solve", "timeout_seconds": None},
        "training": {"steps": 3, "batch_size": 2, "recipe": {"group_size": 2}},
        "environment": {"train": {"file": "tasks.jsonl"}},
        "backend": {"policy": str(POLICY), "options": THREAD},
        "output": str(tmp_path / "runs"),
        "pythonpath": [str(tmp_path)],
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "agentlightning", "train", "--config", "config.yaml", "--run", "r"]
    environment = {**os.environ, "AGL_LOG": ""}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        assert process.stderr is not None
        lines: list[str] = []
        while lines.count("waits") < ROLLOUTS and (line := process.stderr.readline()):
            lines.append(line.strip())
        assert lines.count("waits") == ROLLOUTS, "\n".join(lines)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    warnings = [line for line in rest.splitlines() if line.startswith("WARNING")]
    assert process.returncode == 130 and len(warnings) <= 1, rest  # not one for each rollout
    assert f"{ROLLOUTS} rollouts were under way and are cancelled" in rest
    assert "To go on with it after 1 of 3 steps: --run r --resume" in rest
    assert [path.name for path in checkpoints_in(tmp_path / "runs" / "r")] == ["step-000001"]
