"""A mark among the names that frameworks give: the nearest speaks, and ``tagged`` is stronger than both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import openai
import pytest
from contract.capturing import Recording
from contract.model_server import ModelServer

from agentlightning import semconv
from agentlightning.capture import caller_tags
from agentlightning.capture.context import capture_tags, tagged
from agentlightning.capture.identity import agent_tags, inside_scope, open_scope
from agentlightning.decorator import agent
from agentlightning.types.select import BadSelect

pytestmark = pytest.mark.usefixtures("capturing")
ASK: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}


def speaks(name: str, **tags: str) -> AbstractContextManager[None]:
    """A framework whose agent ``name`` has its turn."""
    return agent_tags(agent=name, **tags)


class Framed:
    """An agent of that framework: it names itself when it runs."""

    def __init__(self, name: str, inner: Any = None) -> None:
        self.name, self.inner = name, inner

    def run(self) -> list[Any]:
        with speaks(self.name):
            return [caller_tags().get("agent"), *(self.inner.run() if self.inner else [])]


@pytest.fixture(autouse=True)
def framework(recording: Recording) -> Iterator[None]:
    with recording.active():
        yield


def test_the_mark_replaces_the_objects_own_name_and_no_others() -> None:
    @agent(name="hero")
    class Mine(Framed):
        pass

    assert Mine("solver").run() == ["hero"]
    assert Mine("solver", Framed("helper")).run() == ["hero", "helper"]
    assert Framed("boss", Mine("solver", Framed("helper"))).run() == ["boss", "hero", "helper"]
    assert Mine("a", Mine("b", Framed("c"))).run() == ["hero", "hero", "c"]


def test_the_frameworks_name_may_be_given_around_the_method() -> None:
    @agent(name="hero", methods=["act"])
    class Mine(Framed):
        def run(self) -> list[Any]:
            with speaks(self.name, role="manager"):
                return self.act()

        def act(self) -> list[Any]:
            return [dict(caller_tags()), *(self.inner.run() if self.inner else [])]

    assert Mine("solver", Framed("helper")).run() == [{"agent": "hero", "role": "manager"}, "helper"]


def test_a_mark_inside_anothers_agent_is_nearer_than_it() -> None:
    @agent(name="hero")
    class Mine:
        def run(self) -> list[Any]:
            return [dict(caller_tags())]

    with speaks("boss", role="manager"):
        assert Mine().run() == [{"agent": "hero", "role": "hero"}], "the role was the other agent's"
    with speaks("boss", node="plan"):
        assert Mine().run() == [{"agent": "hero", "role": "hero", "node": "plan"}]


def test_tagged_is_stronger_where_it_is_nearer() -> None:
    @agent(name="hero")
    class Mine(Framed):
        def run(self) -> list[Any]:
            with tagged(agent="mine", phase="night"):
                inside = super().run()
            return [*super().run(), *inside]

    with tagged(agent="outside", turn="3"):
        assert caller_tags() == {"agent": "outside", "role": "outside", "turn": "3"}
        assert Mine("solver", Framed("helper")).run() == ["hero", "helper", "mine", "mine"]
        assert caller_tags()["agent"] == "outside"


def test_an_object_whose_name_cannot_be_read_has_the_marks() -> None:
    @agent(name="hero")
    class Shy:
        @property
        def name(self) -> str:
            raise LookupError("not yet")

        def run(self) -> Any:
            return caller_tags()["agent"]

    assert Shy().run() == "hero"


def test_marks_reach_threads_and_work_that_is_done_later() -> None:
    @agent(name="hero", select=False)
    class Mine:
        def run(self) -> Any:
            self.seen: list[Any] = []
            thread = threading.Thread(target=lambda: self.seen.append(dict(caller_tags())))
            thread.start()
            thread.join()
            return capture_tags()

    mine = Mine()
    with tagged(phase="night"):
        later = mine.run()
    assert mine.seen == [{"agent": "hero", "role": "hero", "phase": "night"}] and caller_tags() == {}
    with tagged(reader="other"), later():
        assert caller_tags() == {"agent": "hero", "role": "hero", "phase": "night", "reader": "other"}
    assert caller_tags() == {}


# ---------------------------------------------------------------------------------------------- select
async def chosen(server: ModelServer, *marks: Any, **tags: str) -> bool:
    """Whether a call within these marks, outermost first, is trained; ``tags`` hold around the call."""
    from contextlib import ExitStack

    async with openai.AsyncOpenAI(base_url=server.url, api_key="agl-context") as client:
        with ExitStack() as stack:
            for mark in marks:
                stack.enter_context(inside_scope(open_scope("x", object(), mark)))
            stack.enter_context(tagged(**tags))
            await client.chat.completions.create(**ASK)
    header = server.log[-1].headers.get(semconv.HEADER_SELECTED)
    assert header in (None, "0")
    return header is None


async def test_the_innermost_mark_with_a_choice_decides(server: ModelServer) -> None:
    yes, no = (lambda tags: True), (lambda tags: False)
    assert await chosen(server) and await chosen(server, None) and await chosen(server, yes)
    assert not await chosen(server, no) and not await chosen(server, no, None)
    assert await chosen(server, no, yes) and not await chosen(server, yes, no)


async def test_a_choice_is_asked_about_the_calls_final_tags(server: ModelServer) -> None:
    assert await chosen(server, lambda tags: tags == {"agent": "x", "role": "x", "turn": "1"}, turn="1")
    assert await chosen(server, lambda tags: tags["agent"] == "y", agent="y")


async def test_a_choice_that_fails_fails_the_call_and_the_attempt(
    server: ModelServer, recording: Recording
) -> None:
    @agent(select=lambda tags: tags["side"] == "wolves")
    class Mine:
        async def run(self, client: Any) -> None:
            try:
                await client.chat.completions.create(**ASK)
            except BadSelect:
                pass  # as a framework does that hands errors to its model

    async with openai.AsyncOpenAI(base_url=server.url, api_key="agl-context") as client:
        await Mine().run(client)
    assert server.log == [] and "KeyError: 'side'" in str(recording.context.errors[0])


async def test_parallel_entries_keep_their_calls_apart(server: ModelServer, recording: Recording) -> None:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="agl-context") as client:

        @agent(name="hero", reward=lambda result: result)
        class Mine:
            async def run(self, number: float) -> float:
                await client.chat.completions.create(**ASK)
                return number

        await asyncio.gather(*(Mine().run(float(n)) for n in range(4)))
    rewards = [
        s.attributes for s in recording.named(semconv.REWARD_SPAN) if semconv.REWARD_SPAN_ID in s.attributes
    ]
    assert {a[semconv.REWARD_SPAN_ID] for a in rewards} == {c.span_id for c in recording.calls}
    assert sorted(a[semconv.REWARD_VALUE] for a in rewards) == [0.0, 1.0, 2.0, 3.0]
