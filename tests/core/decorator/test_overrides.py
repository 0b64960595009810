"""A mark on a base class holds for subclasses that override the entry."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from agentlightning.capture.call_hooks import ENTRY_WRAPPERS
from agentlightning.capture.identity import caller_tags
from agentlightning.decorator import agent
from agentlightning.decorator.agents import as_agent

Task = TypeVar("Task")


def current_tags() -> dict[str, str]:
    return {name: value for name, value in caller_tags().items() if name != "role"}


@agent(name="base")
class Base:
    def run(self, task: str = "") -> Any:
        return current_tags()


class Child(Base):
    def run(self, task: str = "") -> Any:
        return current_tags()


class Grandchild(Child):
    def run(self, task: str = "") -> Any:
        return {**super().run(), "own": current_tags()["agent"]}


def test_an_override_that_does_not_ask_its_base_is_marked() -> None:
    assert Child().run() == {"agent": "base"} == Base().run()
    assert Grandchild().run() == {"agent": "base", "own": "base"}
    assert current_tags() == {}
    assert isinstance(pickle.loads(pickle.dumps(Grandchild())), Grandchild)


def test_a_subclass_that_was_there_before_the_mark() -> None:
    class Late:
        def run(self) -> Any:
            return current_tags()

    class Early(Late):
        def run(self) -> Any:
            return current_tags()

    agent(name="late")(Late)
    assert Early().run() == {"agent": "late"}


async def test_every_kind_of_method_keeps_its_kind() -> None:
    @agent(name="kinds", methods=["plain", "later", "stream", "static", "of_class"])
    class Kinds:
        def plain(self) -> Any: ...
        async def later(self) -> Any: ...
        async def stream(self) -> AsyncIterator[Any]:
            yield None

        @staticmethod
        def static() -> Any: ...
        @classmethod
        def of_class(cls) -> Any: ...

    class Others(Kinds):
        def plain(self) -> Any:
            return current_tags()

        async def later(self) -> Any:
            return current_tags()

        async def stream(self) -> AsyncIterator[Any]:
            yield current_tags()

        @staticmethod
        def static() -> Any:
            return current_tags()

        @classmethod
        def of_class(cls) -> Any:
            return {**current_tags(), "class": cls.__name__}

    other, expected = Others(), {"agent": "kinds"}
    assert other.plain() == await other.later() == Others.static() == expected
    assert [item async for item in other.stream()] == [expected]
    assert Others.of_class() == {**expected, "class": "Others"}


def test_a_marked_subclass_is_wrapped_once_and_has_its_own_name() -> None:
    entered: list[str] = []

    def entry(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            entered.append("entry")
            return function(*args, **kwargs)

        return call

    ENTRY_WRAPPERS.append(entry)
    try:

        @agent(name="own")
        class Own(Base):
            def run(self, task: str = "") -> Any:
                return current_tags()

    finally:
        ENTRY_WRAPPERS.remove(entry)
    assert Own().run() == {"agent": "own"} and entered == ["entry"]


def test_the_classes_own_hooks_run_once() -> None:
    made: list[tuple[str, str]] = []

    class Root:
        def __init_subclass__(cls, kind: str = "none") -> None:
            made.append((cls.__name__, kind))

    @agent(name="hooked")
    class Hooked(Root):
        def run(self) -> Any: ...

    @agent(name="with its own")
    class Owns(Root):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            made.append((cls.__name__, "own"))
            super().__init_subclass__(**kwargs)

        def run(self) -> Any: ...

    class One(Hooked, kind="one"):
        def run(self) -> Any:
            return current_tags()

    class Two(Owns, kind="two"):
        def run(self) -> Any:
            return current_tags()

    assert One().run() == {"agent": "hooked"} and Two().run() == {"agent": "with its own"}
    assert made == [("Hooked", "none"), ("Owns", "none"), ("One", "one"), ("Two", "own"), ("Two", "two")]


def test_a_class_that_was_made_anew_models_and_generics() -> None:
    @dataclass(slots=True)
    @agent(name="slots")
    class Slots:
        x: int = 1

        def run(self) -> Any: ...

    class Wider(Slots):
        def run(self) -> Any:
            return current_tags()

    @agent(name="model")
    class Model(BaseModel):
        x: int = 1

        def run(self) -> Any: ...

    class Larger(Model):
        y: int = 2

        def run(self) -> Any:
            return {**current_tags(), "sum": self.x + self.y}

    @agent(name="generic")
    class Of(Generic[Task]):
        def run(self, task: Task) -> Any: ...

    class OfText(Of[str]):
        def run(self, task: str) -> Any:
            return current_tags()

    assert Wider().run() == {"agent": "slots"}
    assert Larger().run() == {"agent": "model", "sum": 3} and Larger.model_fields.keys() == {"x", "y"}
    assert OfText().run("t") == {"agent": "generic"}


def test_the_bases_reward_is_that_of_the_override() -> None:
    @agent(reward=lambda result: float(len(result)))
    class Scored:
        def run(self, task: str) -> str:
            return ""

    class Longer(Scored):
        def run(self, task: str) -> str:
            return task * 2

    assert as_agent(Longer()).rollout("abc", {}, None) == 6.0  # type: ignore[arg-type]
