"""Agents: functions, classes, objects, and decorated classes that stay what they were."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from agentlightning.agents import AgentError, FunctionAgent, LitAgent, agent, as_agent, rollout
from agentlightning.capture.context import current_tags
from agentlightning.types import LLM, PromptTemplate, Rollout

LLM_RESOURCE = LLM(endpoint="http://127.0.0.1:1/v1", model="policy")
ROLLOUT = Rollout(rollout_id="ro-1")


def test_function_gets_resources_by_kind_and_by_name() -> None:
    def solve(
        task: str,
        llm: LLM,
        extra: PromptTemplate,
        rollout: Rollout,
        resources: dict[str, object],
        other: int = 3,
    ) -> float:
        assert (llm.model, extra.template, rollout.rollout_id, len(resources), other) == (
            "policy",
            "p",
            "ro-1",
            2,
            3,
        )
        return 1.0

    wrapped = as_agent(solve)
    assert not wrapped.is_async
    assert wrapped.rollout("t", {"main": LLM_RESOURCE, "extra": PromptTemplate(template="p")}, ROLLOUT) == 1.0


def test_missing_resource_names_parameter_and_what_there_is() -> None:
    def solve(task: str, prompt_template: PromptTemplate) -> float:
        return 0.0

    with pytest.raises(AgentError, match=r"asks for 'prompt_template'.*\['llm'\]"):
        as_agent(solve).rollout("t", {"llm": LLM_RESOURCE}, ROLLOUT)


def test_function_without_task_is_refused() -> None:
    with pytest.raises(AgentError, match="first parameter must be the task"):
        as_agent(lambda: 1.0)


async def test_decorated_function_stays_callable_and_async() -> None:
    @rollout
    async def solve(task: int, llm: LLM) -> float:
        """Doc."""
        return task * 2.0

    assert (
        isinstance(solve, FunctionAgent)
        and solve.is_async
        and solve.__doc__ == "Doc."
        and solve.name == "solve"
    )
    assert await solve(3, LLM_RESOURCE) == 6.0
    assert await solve.entry("train")(4, {"llm": LLM_RESOURCE}, ROLLOUT) == 8.0


def test_objects_with_run_and_classes() -> None:
    class Solver:
        def run(self, task: int) -> float:
            return task + 0.5

    assert as_agent(Solver).rollout(1, {}, ROLLOUT) == 1.5
    assert as_agent(Solver()).rollout(2, {}, ROLLOUT) == 2.5
    with pytest.raises(AgentError, match="is no agent"):
        as_agent(object())


def test_lit_agent_modes() -> None:
    class Mine(LitAgent[int]):
        def rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 1.0

        def validation_rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 2.0

    mine = Mine()
    assert (mine.entry("train")(0, {}, ROLLOUT), mine.entry("val")(0, {}, ROLLOUT)) == (1.0, 2.0)
    with pytest.raises(AgentError, match="neither rollout nor rollout_async"):
        LitAgent().rollout(0, {}, ROLLOUT)


@agent
@dataclass
class Marked:
    """A dataclass agent at module level, so that it pickles."""

    size: int = 2

    def run(self, task: str) -> dict[str, str]:
        return {"task": task, **current_tags()}

    async def arun(self, task: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"task": task, **current_tags()}


def test_marked_class_is_the_same_class() -> None:
    assert isinstance(Marked, type) and Marked.__name__ == "Marked"
    assert list(inspect.signature(Marked.run).parameters) == ["self", "task"]
    assert pickle.loads(pickle.dumps(Marked(3))) == Marked(3)
    assert Marked().run("x") == {"task": "x", "agent": "Marked"}
    assert current_tags() == {}

    class Child(Marked):
        def run(self, task: str) -> dict[str, str]:
            return super().run(task) | {"child": "1"}

    assert Child().run("y") == {"task": "y", "agent": "Marked", "child": "1"}


async def test_marked_coroutines_and_generators_tag_only_their_own_code() -> None:
    @agent(name="writer", methods=["stream", "arun"])
    class Streamer:
        async def arun(self) -> dict[str, str]:
            return current_tags()

        async def stream(self, n: int) -> AsyncIterator[dict[str, str]]:
            for _ in range(n):
                yield current_tags()

    assert await Streamer().arun() == {"agent": "writer"}
    seen = []
    async for item in Streamer().stream(2):
        seen.append((item, current_tags()))
    assert seen == [({"agent": "writer"}, {})] * 2


def test_class_without_entry_is_refused() -> None:
    with pytest.raises(AgentError, match="give methods="):

        @agent
        class Nothing:
            pass
