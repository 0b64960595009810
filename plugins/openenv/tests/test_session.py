"""The protocol, its faults, observations as messages, answers as actions, tasks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from agl_openenv import EnvironmentFailed, tasks
from agl_openenv.conversation import action_of, shown, text_field
from agl_openenv.session import RefusedAction, Session
from plugins.openenv.tests.protocol import SCHEMA, Counting, serving


async def test_a_full_server_is_waited_for() -> None:
    counting = Counting(free=1)
    async with serving(counting) as url, Session(url) as first, Session(url) as second:
        await first.reset(seed=1)
        waiting = asyncio.create_task(second.reset(seed=2))
        while not counting.refused:
            await asyncio.sleep(0.01)
        await first.__aexit__(None, None, None)
        step = await waiting
        assert step.observation == {"so_far": [], "wanted": 2} and not step.done


async def test_a_server_that_stays_full_is_named() -> None:
    async with serving(Counting(free=0)) as url, Session(url, capacity_seconds=0.1) as session:
        with pytest.raises(EnvironmentFailed, match=r"no session became free in 0\.1 s: raise the server's"):
            await session.reset()


@pytest.mark.parametrize(
    "broken, said",
    [
        ("{", "gave no answer"),
        ("[1]", "gave no answer"),
        ('{"type": "observation", "data": {}}', "not an observ"),
    ],
)
async def test_an_answer_of_another_form_is_refused(broken: str, said: str) -> None:
    async with serving(Counting(broken=broken)) as url, Session(url) as session:
        with pytest.raises(EnvironmentFailed, match=said):
            await session.reset()


async def test_a_server_that_is_not_there_is_named() -> None:
    async with Session("http://127.0.0.1:9") as session:
        for asked in (session.reset, session.action_schema):
            with pytest.raises(
                EnvironmentFailed, match=r"reached at http://127.0.0.1:9 \(.*: start it, or"
            ) as why:
                await asked()
            assert "ConnectionKey" not in str(why.value)


async def test_a_server_that_says_nothing_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait there, and nobody accepts them
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with Session(url, 0.1) as session:
            with pytest.raises(EnvironmentFailed, match=r"did not answer within 0\.1 s"):
                await session.reset()


async def test_an_action_that_the_schema_refuses_leaves_the_episode() -> None:
    async with serving(Counting()) as url, Session(url) as session:
        assert set((await session.action_schema())["properties"]) == {"number", "polite"}
        await session.reset(seed=2)
        with pytest.raises(RefusedAction):
            await session.step({"number": "one"})
        assert (await session.step({"number": 1})).reward == 1.0


def test_what_the_model_sees_of_an_observation() -> None:
    common: dict[str, Any] = {"done": False, "reward": None, "metadata": {}}
    assert shown({**common, "text": "hello"}, None) == "hello"
    assert shown({**common, "a": 1, "b": "ü"}, None) == '{"a": 1, "b": "ü"}'
    assert shown({**common, "a": 1, "b": "two"}, "b") == "two"
    with pytest.raises(KeyError, match="no field 'c'"):
        shown({"a": 1}, "c")


def test_an_answer_is_the_only_text_field_or_json() -> None:
    assert text_field({"properties": {"message": {"type": "string"}}}) == "message"
    assert text_field({"properties": {"move": {"type": "string", "enum": ["up"]}}}) is None
    assert text_field(SCHEMA) is None
    assert action_of("hi", "message") == {"message": "hi"} and action_of('{"a": 1}', None) == {"a": 1}
    for answer in ("no", "[1]"):
        with pytest.raises(RefusedAction):
            action_of(answer, None)


def test_tasks_are_resets() -> None:
    first, second = tasks("http://e", count=2, first_seed=7)
    assert (first["reset"], second["reset"]) == ({"seed": 7}, {"seed": 8})
    assert tasks("m:app", resets=[{"level": 3}])[0]["reset"] == {"level": 3}
    with pytest.raises(ValueError, match="either count or resets"):
        tasks("m:app")
    with pytest.raises(ValueError, match="at least one step"):
        tasks("m:app", count=1, max_steps=0)
