"""Agents: functions, classes, objects, and objects of marked classes that are scored."""

from __future__ import annotations

import asyncio
import inspect
import pickle

import pytest

from agentlightning.decorator import agent
from agentlightning.decorator.agents import AgentError, FunctionAgent, RunnableAgent, as_agent, rollout
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
    assert not inspect.iscoroutinefunction(wrapped.entry("train"))
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
        and inspect.iscoroutinefunction(solve.entry("train"))
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


def test_class_that_needs_arguments_is_refused_with_what_to_do() -> None:
    class Solver:
        def __init__(self, size: int) -> None: ...

        def run(self, task: int) -> float:
            return 1.0

    with pytest.raises(AgentError, match=r"Solver cannot be made without arguments \(.*'size'\)"):
        as_agent(Solver)


@agent(name="writer", reward=lambda task, result: float(len(result)))
class Writer:
    """At module level, so that it pickles."""

    def __init__(self, word: str = "abc") -> None:
        self.word = word

    def run(self, task: int) -> str:
        return self.word * task

    async def arun(self, task: int, llm: LLM) -> str:
        return self.word * task


def test_an_object_of_a_marked_class_is_scored_by_its_function() -> None:
    scored = as_agent(Writer)
    assert isinstance(scored, FunctionAgent) and (scored.name, scored.judged) == ("writer", True)
    assert scored.rollout(2, {}, ROLLOUT) == 6.0
    assert as_agent(Writer("x").run).rollout(2, {}, ROLLOUT) == 2.0
    assert as_agent(pickle.loads(pickle.dumps(as_agent(Writer("xy"))))).rollout(2, {}, ROLLOUT) == 4.0
    assert Writer().run(1) == "abc", "its own callers get what they always got"


async def test_async_methods_and_async_reward_functions() -> None:
    assert await as_agent(Writer().arun).entry("train")(2, {"llm": LLM_RESOURCE}, ROLLOUT) == 6.0

    async def score(result: str) -> int:
        await asyncio.sleep(0)
        return len(result)

    @agent(reward=score)
    class Both(Writer):
        pass

    assert await as_agent(Both).rollout(2, {}, ROLLOUT) == 6.0
    assert await as_agent(Both().arun).entry("val")(1, {"llm": LLM_RESOURCE}, ROLLOUT) == 3.0


def test_a_marked_class_without_run_is_run_by_its_entry_method() -> None:
    @agent(methods=["answer"])
    class Odd:
        def answer(self, task: int) -> float:
            return task + 0.5

    assert as_agent(Odd).rollout(1, {}, ROLLOUT) == 1.5


def test_a_reward_function_on_an_agent_of_its_own_is_refused() -> None:
    @agent(methods=["rollout"], reward=len)
    class Mine(RunnableAgent):
        def rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 1.0

    with pytest.raises(AgentError, match="Mine is an agent that returns its reward itself"):
        as_agent(Mine)
