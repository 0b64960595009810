"""The channel: questions wait for their answers, the secret is asked for, errors end the child."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agl_verl.process.channel import Channel, ChannelClosed, ChannelServer

SIZE = 2**18
"""Bytes of a piece."""


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, asyncio.Queue[dict[str, Any]]]]:
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def following(said: dict[str, Any]) -> dict[str, Any]:
        return await orders.get()

    async def echo(said: dict[str, Any]) -> bytes:
        return json.dumps(said).encode()

    async def broken(said: dict[str, Any]) -> None:
        raise ValueError("no reward in three steps")

    async def long(said: dict[str, Any]) -> Iterator[bytes]:
        return (bytes([n]) * SIZE for n in range(said["pieces"]))

    handlers = {"next": following, "echo": echo, "broken": broken, "long": long}
    server = ChannelServer("s3cret", handlers)
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


async def test_a_long_answer_comes_piece_by_piece(served: tuple[str, Any]) -> None:
    """A piece is made when the one before is on its way, so that the driver never holds the whole."""
    tracemalloc.start()
    asked = asyncio.create_task(asyncio.to_thread(digest_of, served[0], 64))
    try:
        size, digest = await asked
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 64 * SIZE and peak < 24 * SIZE
    assert digest == hashlib.sha256(b"".join(bytes([n]) * SIZE for n in range(64))).hexdigest()


def digest_of(address: str, count: int) -> tuple[int, str]:
    """Read an answer as it comes, without keeping it."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    connection.request("POST", "/long", json.dumps({"pieces": count}), {"Authorization": "Bearer s3cret"})
    response, size, digest = connection.getresponse(), 0, hashlib.sha256()
    while part := response.read(2**16):
        size, _ = size + len(part), digest.update(part)
    connection.close()
    return size, digest.hexdigest()


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
