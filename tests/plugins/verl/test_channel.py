"""The channel: questions wait for their answers, the secret is asked for, errors end the child."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agl_verl.process.channel import Channel, ChannelClosed, ChannelServer


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, asyncio.Queue[dict[str, Any]]]]:
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def following(said: dict[str, Any]) -> dict[str, Any]:
        return await orders.get()

    async def echo(said: dict[str, Any]) -> bytes:
        return json.dumps(said).encode()

    async def broken(said: dict[str, Any]) -> None:
        raise ValueError("no reward in three steps")

    server = ChannelServer("s3cret", {"next": following, "echo": echo, "broken": broken})
    yield await server.start(), orders
    await server.stop()


async def test_an_order_is_waited_for(served: tuple[str, asyncio.Queue[dict[str, Any]]]) -> None:
    address, orders = served
    waiting = asyncio.ensure_future(asyncio.to_thread(Channel(address, "s3cret").order))
    await orders.put({"do": "fit", "steps": 3})
    assert await waiting == {"do": "fit", "steps": 3}


async def test_a_question_and_its_answer(served: tuple[str, Any]) -> None:
    answer = await asyncio.to_thread(Channel(served[0], "s3cret").ask, "echo", step=4, what="grüße")
    assert json.loads(answer) == {"step": 4, "what": "grüße"}


@pytest.mark.parametrize(("secret", "what", "said"), [
    ("other", "echo", "not the channel's secret"),
    ("s3cret", "nothing", "no such question"),
    ("s3cret", "broken", "ValueError: no reward in three steps"),
])  # fmt: skip
async def test_refusals_say_why(served: tuple[str, Any], secret: str, what: str, said: str) -> None:
    with pytest.raises(ChannelClosed, match=said):
        await asyncio.to_thread(Channel(served[0], secret).ask, what)


async def test_a_driver_that_is_gone() -> None:
    server = ChannelServer("s", {})
    address = await server.start()
    await server.stop()
    with pytest.raises(ChannelClosed, match="does not answer"):
        await asyncio.to_thread(Channel(address, "s").ask, "next")
