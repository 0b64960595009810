"""``@agl.agent`` decorates classes in place: they stay the same, and their calls are named."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import pickle
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Generator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from agentlightning.capture.context import tagged
from agentlightning.capture.identity import caller_tags
from agentlightning.decorator import agent
from agentlightning.decorator.reward_function import AgentError
from agentlightning.types.select import BadSelect


def current_tags() -> dict[str, str]:
    """The tags of the current caller, without the role that every agent has by default."""
    return {name: value for name, value in caller_tags().items() if name != "role"}


@agent
@dataclass
class Decorated:
    """A dataclass agent at module level, so that it pickles."""

    size: int = 2

    def run(self, task: str) -> dict[str, str]:
        return {"task": task, **current_tags()}

    async def arun(self, task: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"task": task, **current_tags()}


def test_decorated_class_is_the_same_class() -> None:
    assert isinstance(Decorated, type) and Decorated.__name__ == "Decorated"
    assert list(inspect.signature(Decorated.run).parameters) == ["self", "task"]
    assert pickle.loads(pickle.dumps(Decorated(3))) == Decorated(3)
    assert Decorated().run("x") == {"task": "x", "agent": "Decorated"}
    assert current_tags() == {}

    class Child(Decorated):
        def run(self, task: str) -> dict[str, str]:
            return super().run(task) | {"child": "1"}

    assert Child().run("y") == {"task": "y", "agent": "Decorated", "child": "1"}


async def test_decorated_coroutines_and_generators_tag_only_their_own_code() -> None:
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


async def test_a_decorated_method_may_return_a_coroutine() -> None:
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


def test_decorated_static_and_class_methods_keep_their_kind() -> None:
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


def test_decorated_sync_generators_tag_only_their_own_code() -> None:
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


async def test_decorated_async_generators_pass_on_what_is_sent_and_thrown() -> None:
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


async def test_an_object_has_the_name_of_its_nearest_decorated_class() -> None:
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


def test_an_inherited_method_may_be_wrapped_after_the_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_wrapper_of_somebody_else_survives_a_second_decorator() -> None:
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
def test_methods_that_cannot_be_decorated_are_refused(methods: list[str], match: str) -> None:
    class Mine:
        size = 3

    with pytest.raises(AgentError, match=match):
        agent(methods=methods)(Mine)


def test_pydantic_models_metaclasses_and_slots_stay_what_they_are() -> None:
    class Meta(type):
        pass

    @agent(name="m", select="m", reward=len)
    class Model(BaseModel):
        size: int = 1

        def run(self) -> str:
            return current_tags()["agent"]

    @agent(name="k")
    class Kept(metaclass=Meta):
        def run(self) -> str:
            return current_tags()["agent"]

    @agent(name="s", select=True)
    @dataclass(slots=True, frozen=True)
    class Slotted:
        size: int = 1

        def run(self) -> str:
            return current_tags()["agent"]

    assert Model(size=2).model_dump() == {"size": 2} and Model.model_validate({"size": 3}).run() == "m"
    assert type(Kept) is Meta and Kept().run() == "k"
    assert Slotted(2) == Slotted(2) and not hasattr(Slotted(), "__dict__") and Slotted().run() == "s"


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"select": ""}, BadSelect, "@agl.agent on Mine: select: '' is no name"),
        ({"select": []}, BadSelect, "select is an empty list, which means nobody"),
        ({"select": 3}, BadSelect, r"select is 3 \(int\): give a name"),
        ({"select": ["a", 1]}, BadSelect, "give a name, a list of names"),
        ({"select": "re:("}, BadSelect, "is not a regular expression"),
        ({"select": lambda: True}, BadSelect, "does not take one argument"),
        ({"reward": 1.0}, AgentError, "reward is 1.0; give a function"),
        (
            {"reward": lambda answer, gold: 1.0},
            AgentError,
            "may take task, result, agent by name, or take",
        ),
        ({"reward": lambda: 1.0}, AgentError, "or take the result as its only parameter"),
        ({"reward": lambda result, gold: 1.0}, AgentError, r"of agent 'Mine' takes \(result, gold\)"),
        ({"name": " "}, AgentError, "name is ' '"),
        ({"name": 3}, AgentError, "name is 3"),
        ({"methods": "run"}, AgentError, "methods is 'run'; give a list"),
        ({"methods": []}, AgentError, "give methods="),
    ],
)
def test_bad_arguments_are_refused_where_they_are_given(
    arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    class Mine:
        def run(self) -> None: ...

    run = Mine.run
    with pytest.raises(error, match=match):
        agent(**arguments)(Mine)
    assert Mine.run is run, "what is refused changes nothing"


def test_functions_are_refused() -> None:
    def solve() -> None: ...

    for mark in (agent, agent(name="x")):
        with pytest.raises(AgentError, match=r"for a function.*@agl.rollout"):
            mark(solve)


def test_one_wrong_method_leaves_all_undecorated() -> None:
    class Mine:
        def run(self) -> None: ...

    run = Mine.run
    with pytest.raises(AgentError, match="has no method 'nope'"):
        agent(methods=["run", "nope"])(Mine)
    assert Mine.run is run


@types.coroutine
def hang() -> Generator[None, None, None]:
    yield


@agent(methods=["run", "astream"])
class Left:
    async def run(self) -> None:
        await hang()

    async def astream(self) -> AsyncGenerator[str, None]:
        await hang()
        yield "never"


@pytest.mark.parametrize("work", [lambda: Left().run(), lambda: anext(Left().astream())])
def test_suspended_calls_may_be_closed_anywhere(work: Any) -> None:
    """As the end of a loop or the garbage collector does: in a context where nothing was set."""

    async def hanging() -> None:
        with tagged(turn="1"):
            await work()

    left = hanging()
    contextvars.copy_context().run(left.send, None)
    left.close()
    gc.collect()  # what could not be raised would be a warning
    assert current_tags() == {}


async def test_a_cancellation_thrown_into_a_stream_is_the_streams() -> None:
    met: list[str] = []

    @agent(methods=["astream", "items"])
    class Careful:
        async def astream(self) -> AsyncGenerator[int, None]:
            try:
                yield 1
            except asyncio.CancelledError:
                met.append("cancelled")
                raise

        def items(self) -> Generator[int, None, None]:
            try:
                yield 1
            except KeyboardInterrupt:
                met.append("interrupted")
                raise

    stream = Careful().astream()
    await anext(stream)
    with pytest.raises(asyncio.CancelledError):
        await stream.athrow(asyncio.CancelledError())
    items = Careful().items()
    next(items)
    with pytest.raises(KeyboardInterrupt):
        items.throw(KeyboardInterrupt())
    assert met == ["cancelled", "interrupted"]
