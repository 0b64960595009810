"""An engine that sends no token ids, as llama.cpp's and Ollama's do: evaluated, and not trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from agl_testing import ScriptedModelServer
from openai import AsyncOpenAI
from typer.testing import CliRunner

from agentlightning import cli
from agentlightning.types import LLM, UsageError

pytestmark = pytest.mark.plugins


async def adds(task: Any, llm: LLM) -> float:
    """The agent: the answer must be the sum."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        asked = [{"role": "user", "content": f"{task['a']} + {task['b']}"}]
        reply = await client.chat.completions.create(model=llm.model, messages=asked)  # type: ignore[arg-type]
    return float(reply.choices[0].message.content == str(task["a"] + task["b"]))


@pytest.fixture
def endpoint(tmp_path: Path):
    """A server without token ids that always answers 5, and the file of a run with it."""
    with ScriptedModelServer(lambda body: "5", model="policy", ids="never") as server:
        tasks = [{"a": 2, "b": 3}, {"a": 3, "b": 3}]
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        config = {
            "agent": {"target": "e2e.test_endpoint_evaluated:adds"},
            "environment": {"train": {"file": "tasks.jsonl"}, "val": {"file": "tasks.jsonl"}},
            "training": {"steps": 1, "batch_size": 2},
            "backend": {"policy": {"agent": {"endpoint": server.url, "model": "policy"}}},
            "pythonpath": [str(Path(__file__).parents[1])],
            "output": str(tmp_path / "runs"),
            "trackers": [],
        }
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
        yield server, tmp_path / "run.yaml"


def test_it_is_evaluated_and_no_call_is_exact(endpoint) -> None:
    server, file = endpoint
    ran = CliRunner().invoke(cli.app(["eval"]), ["eval", "--config", str(file)], catch_exceptions=False)
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["reward"], found["n"], found["calls_made"], found["calls_exact"]) == (0.5, 2, 2, 0)
    # What the page says of the temperature: the engine's own, where the agent gives none.
    assert all("temperature" not in exchange.body for exchange in server.log)


def test_it_is_not_trained(endpoint) -> None:
    server, file = endpoint
    with pytest.raises(UsageError, match="nothing is trained"):
        CliRunner().invoke(cli.app(["train"]), ["train", "--config", str(file)], catch_exceptions=False)
    assert not server.log
