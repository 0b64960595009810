"""An agent of Microsoft's Agent Framework, with the tracer that its lab package has for Agent Lightning."""

from __future__ import annotations

import os
from typing import Any

from agent_framework import Agent
from agent_framework.lab.lightning import AgentFrameworkTracer
from agent_framework.openai import OpenAIChatCompletionClient

import agentlightning as agl


class MathAgent(agl.LitAgent[dict[str, Any]]):
    async def rollout_async(
        self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout
    ) -> float:
        llm = resources["main_llm"]
        client = OpenAIChatCompletionClient(
            model=llm.model, base_url=llm.endpoint, api_key=os.environ["OPENAI_API_KEY"]
        )
        agent = Agent(client, name="mathematician", instructions="Answer with the name of a city.")
        answer = await agent.run(task["question"])
        assert any(span.name == "openai.chat.completion" for span in self.tracer.get_last_trace())
        return float(task["answer"] in answer.text)


if __name__ == "__main__":
    endpoint = agl.LLM(
        endpoint=os.environ["OPENAI_API_BASE"], model="m", sampling_parameters={"temperature": 0.7}
    )
    tasks = [{"question": "Which city is the capital of France?", "answer": "Paris"}] * 2
    loader = agl.DevTaskLoader(tasks, {"main_llm": endpoint})
    agl.Trainer(n_workers=1, tracer=AgentFrameworkTracer(), dev=True).fit(
        MathAgent(), "http://localhost:9999", loader
    )
    print([report.final_reward for report in loader.rollouts])
