"""An agent of Microsoft's Agent Framework, trained with the tracer that its lab package has for Agent
Lightning 0.2 and 0.3: ``python bench/doors/lab.py TASKS POLICY FOLDER``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agent_framework import Agent
from agent_framework.lab.lightning import AgentFrameworkTracer
from agent_framework.openai import OpenAIChatCompletionClient

import agentlightning as agl

TOLD: list[str] = []
"""What the lab's tracer called of ours."""


def told(name: str) -> None:
    """Note each call of a method of our tracer."""
    method = getattr(agl.AgentOpsTracer, name)

    def noted(tracer: Any) -> None:
        TOLD.append(name)
        method(tracer)

    setattr(agl.AgentOpsTracer, name, noted)


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression."""
    return str(eval(expression, {"__builtins__": {}}))


class Solver(agl.LitAgent[dict[str, Any]]):
    """An agent in the shape of v0.3."""

    async def rollout_async(
        self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
    ) -> float:
        llm = resources["main_llm"]
        client = OpenAIChatCompletionClient(llm.model, base_url=llm.endpoint, api_key=llm.api_key)
        agent = Agent(client, "Use the calculator.", name="solver", tools=[calculate])
        answer = await agent.run(task["question"])
        spans = {span.name for span in self.tracer.get_last_trace()}
        assert any(name.startswith("invoke_agent") for name in spans), spans  # what the lab switched on
        return float(f" {task['result']} " in answer.text)


if __name__ == "__main__":
    told("init")
    told("teardown")
    tasks, policy, folder = (
        json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")),
        sys.argv[2],
        sys.argv[3],
    )
    trainer = agl.Trainer(
        tracer=AgentFrameworkTracer(),
        policy=policy,
        steps=3,
        batch_size=4,
        recipe={"group_size": 4},
        concurrency=8,
        timeout_seconds=240,
        evaluate_sampled=False,
        options={"threads": 1, "engine_threads": 1, "max_len": 1024},
        output=folder,
    )
    trainer.fit(Solver(), train_dataset=tasks)
    assert TOLD == ["init", "teardown"], TOLD
