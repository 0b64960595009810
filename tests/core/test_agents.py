"""Agents: functions, classes, objects, and decorated classes that stay what they were."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator
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


async def test_a_marked_method_may_leave_its_work_to_be_awaited() -> None:
    @agent(name="writer")
    class Lazy:
        def run(self, task: str) -> Awaitable[dict[str, str]]:
            async def work() -> dict[str, str]:
                return {**current_tags(), "task": task}

            return work()

    made = Lazy().run("x")
    assert current_tags() == {}
    assert await made == {"agent": "writer", "task": "x"}


def test_class_without_entry_is_refused() -> None:
    with pytest.raises(AgentError, match="give methods="):

        @agent
        class Nothing:
            pass


def test_lit_agent_decides_per_mode_what_it_calls() -> None:
    class Mixed(LitAgent[int]):
        async def training_rollout_async(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 1.0

        def validation_rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 2.0

    mixed = Mixed()
    assert (mixed.is_async_in("train"), mixed.is_async_in("val"), mixed.is_async) == (True, False, True)
    assert inspect.iscoroutinefunction(mixed.entry("train"))
    assert asyncio.run(mixed.entry("train")(0, {}, ROLLOUT)) == 1.0
    assert mixed.entry("val")(0, {}, ROLLOUT) == 2.0

    class Sync(Mixed):
        def training_rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 3.0

    assert not Sync().is_async and Sync().entry("train")(0, {}, ROLLOUT) == 3.0


def test_async_def_rollout_is_async() -> None:
    class Mine(LitAgent[int]):
        async def rollout(self, task: int, resources: dict, rollout: Rollout) -> float:  # type: ignore[override]
            return 1.0

    mine = Mine()
    assert mine.is_async and mine.is_async_in("train") and mine.is_async_in("val")
    assert asyncio.run(mine.entry("val")(0, {}, ROLLOUT)) == 1.0


def test_class_that_needs_arguments_is_refused_with_what_to_do() -> None:
    class Solver:
        def __init__(self, size: int) -> None: ...

        def run(self, task: int) -> float:
            return 1.0

    with pytest.raises(AgentError, match=r"Solver cannot be made without arguments \(.*'size'\)"):
        as_agent(Solver)


def test_marked_static_and_class_methods_keep_their_kind() -> None:
    @agent(methods=["make", "solve"])
    class Tools:
        @staticmethod
        def solve(x: int) -> tuple[int, dict[str, str]]:
            return x, current_tags()

        @classmethod
        def make(cls) -> tuple[type, dict[str, str]]:
            return cls, current_tags()

    assert isinstance(inspect.getattr_static(Tools, "solve"), staticmethod)
    assert Tools.solve(1) == Tools().solve(1) == (1, {"agent": "Tools"})
    assert Tools.make() == Tools().make() == (Tools, {"agent": "Tools"})

    @agent(name="sub", methods=["make", "solve"])
    class Sub(Tools):
        pass

    assert Sub.solve(1) == (1, {"agent": "sub"}) and Sub.make() == (Sub, {"agent": "sub"})
    assert Tools.solve(1) == (1, {"agent": "Tools"}) and Tools.make() == (Tools, {"agent": "Tools"})


def test_marked_sync_generators_tag_only_their_own_code() -> None:
    seen: list[dict[str, str]] = []

    @agent(methods=["stream"])
    class Streamer:
        def stream(self, n: int) -> Generator[dict[str, str], str, str]:
            try:
                for _ in range(n):
                    try:
                        answer = yield current_tags()
                        seen.append({"answer": answer})
                    except KeyError:
                        seen.append({"thrown": "in"})
                return "done"
            finally:
                seen.append(current_tags())

    assert inspect.isgeneratorfunction(Streamer.stream)
    source = Streamer().stream(3)
    assert next(source) == {"agent": "Streamer"} and current_tags() == {}
    assert source.send("x") == {"agent": "Streamer"} and current_tags() == {}
    assert source.throw(KeyError()) == {"agent": "Streamer"} and current_tags() == {}
    with pytest.raises(StopIteration) as end:
        source.send("y")
    assert end.value.value == "done"
    assert seen == [{"answer": "x"}, {"thrown": "in"}, {"answer": "y"}, {"agent": "Streamer"}]


async def test_marked_async_generators_pass_on_what_is_sent_and_thrown() -> None:
    @agent(methods=["stream"])
    class Streamer:
        async def stream(self) -> AsyncGenerator[object, object]:
            answer = yield "first"
            try:
                yield answer
            except KeyError:
                yield current_tags()

    source = Streamer().stream()
    assert await anext(source) == "first"
    assert await source.asend(5) == 5
    assert await source.athrow(KeyError()) == {"agent": "Streamer"} and current_tags() == {}
    await source.aclose()


async def test_an_object_has_the_name_of_its_nearest_marked_class() -> None:
    @agent
    class Base:
        def run(self) -> dict[str, str]:
            return current_tags()

        async def arun(self) -> dict[str, str]:
            return current_tags()

    @agent
    class Critic(Base):
        def run(self) -> dict[str, str]:
            return super().run()

    @agent(name="child")
    class Inherits(Base):
        pass

    class Asks(Base):
        def run(self) -> dict[str, str]:
            with_me = super().run()
            return {"other": Critic().run()["agent"], **with_me}

    assert Critic().run() == {"agent": "Critic"} == await Critic().arun()
    assert Inherits().run() == {"agent": "child"}
    assert Base().run() == {"agent": "Base"} == await Base().arun()
    assert Asks().run() == {"agent": "Base", "other": "Critic"}


def test_an_inherited_method_may_be_wrapped_after_the_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        def run(self, task: str) -> str:
            return f"{task} by {current_tags()['agent']}"

    @agent(name="mine")
    class Mine(Base):
        pass

    inner = Base.run
    monkeypatch.setattr(Base, "run", lambda self, task: f"wrapped {inner(self, task)}")
    assert Mine().run("t") == "wrapped t by mine"


def test_an_inherited_method_of_a_class_that_was_made_anew() -> None:
    class Base:
        __slots__ = ()

        def run(self) -> str:
            return current_tags()["agent"]

    @dataclass(slots=True)
    @agent(name="mine")
    class Mine(Base):
        x: int = 1

    assert Mine().run() == "mine"


def test_a_wrapper_of_somebody_else_survives_a_second_mark() -> None:
    @agent(methods=["solve"])
    class Base:
        @staticmethod
        def solve() -> dict[str, str]:
            return current_tags()

    inner = Base.solve

    @functools.wraps(inner)
    def counted() -> dict[str, str]:
        return {"counted": "1", **inner()}

    Base.solve = staticmethod(counted)  # type: ignore[method-assign]
    agent(name="again", methods=["solve"])(Base)
    assert Base.solve()["counted"] == "1"


@pytest.mark.parametrize(
    ("methods", "match"), [(["nope"], "has no method 'nope'"), (["size"], "is of type int, not a method")]
)
def test_methods_that_cannot_be_marked_are_refused(methods: list[str], match: str) -> None:
    class Mine:
        size = 3

    with pytest.raises(AgentError, match=match):
        agent(methods=methods)(Mine)
