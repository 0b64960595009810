"""Agents as programs for Agent Lightning 0.1 to 0.3 have them: importable, so that worker processes can run
them.
"""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, OpenAI

import agentlightning as agl
from agentlightning import LitAgent
from agentlightning.tracer.triplet import TripletExporter
from plugins.cluster.tests.runners.agents_for_workers import Configured


def ask(llm: agl.LLM, base_url: str, text: str) -> str:
    """Ask as those programs do: with a key of their own, at the endpoint that they were given."""
    with OpenAI(base_url=base_url, api_key="token-abc123", max_retries=0) as client:
        said = client.chat.completions.create(
            model=llm.model,
            messages=[{"role": "user", "content": text}],
            temperature=llm.sampling_parameters["temperature"],
        )
    return said.choices[0].message.content or ""


class OfV03(LitAgent[str]):
    """0.3: constructor, resources by name, the rollout's attempt, tracer and trainer."""

    def __init__(self, trained_agents: str | None = "write") -> None:
        super().__init__(trained_agents=trained_agents)
        self.seen: dict[str, Any] = {}

    def rollout(self, task: str, resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        llm = resources["main_llm"]
        assert isinstance(llm, agl.LLM)
        attempt = rollout.attempt  # type: ignore[attr-defined]
        assert self.tracer.get_last_trace() == []
        said = ask(llm, llm.get_base_url(rollout.rollout_id, attempt.attempt_id), task)
        self.seen = {
            "ids": (attempt.rollout_id == rollout.rollout_id, attempt.attempt_id, attempt.sequence_id),
            "temperature": llm.sampling_parameters["temperature"],
            "trace": [span.name for span in self.tracer.get_last_trace()],
            "trainer": getattr(self, "trainer", None),
            "runner": getattr(self, "runner", None),
        }
        return float(said == f"ok: {task}")


class OfV01(LitAgent):  # type: ignore[type-arg]
    """0.1: no constructor of the base, ``(task, rollout_id, resources)`` by position, transitions from the
    tracer.
    """

    def __init__(self) -> None:
        self.exporter = TripletExporter()

    async def training_rollout_async(self, task: Any, ident: str, given: agl.NamedResources) -> Any:
        raise AssertionError("the parameter must be called rollout_id")


class Transitions(OfV01):
    """Two calls, of which it returns the second with a reward of its own."""

    async def training_rollout_async(
        self, task: Any, rollout_id: str, resources: agl.NamedResources
    ) -> list[agl.Triplet]:
        assert rollout_id.startswith("ro-")
        llm = resources["main_llm"]
        assert isinstance(llm, agl.LLM)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key="xxx", max_retries=0) as client:
            for text in ("first", task):
                await client.chat.completions.create(
                    model=llm.model, messages=[{"role": "user", "content": text}]
                )
        first, second = self.exporter.export(self.tracer.get_last_trace())
        assert first.prompt.get("token_ids") and first.prompt != second.prompt
        second.reward = 15.0
        second.reward = second.reward - 5.0
        return [second]


class InWorker(LitAgent[str]):
    """Reports what it knows as its reward: the calls of its trace with ids, in a process of its own."""

    def rollout(self, task: str, resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        llm = resources["main_llm"]
        assert isinstance(llm, agl.LLM)
        ask(llm, llm.endpoint, task)
        found = TripletExporter().export(self.tracer.get_last_trace())
        return float(len(found) + bool(found[0].response["token_ids"]))


class CannotCleanUp(Configured):
    """Fails when its rollout has ended."""

    def on_rollout_end(self, task: Any, rollout: Any, result: Any, error: Any) -> None:
        raise ValueError("cannot clean up")
