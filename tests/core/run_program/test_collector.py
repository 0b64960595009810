"""The door: only for those who hold an attempt's key, and only for that attempt."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from agentlightning.capture.context import AttemptContext
from agentlightning.keys import Keys
from agentlightning.run_program.collector import Collector, ConnectedProgram
from agentlightning.run_program.inside.frames import (
    GREETING,
    HEAD,
    Adapted,
    BeginEntry,
    Counted,
    EntryDenied,
    Hello,
    SpanEnded,
    packed,
    to_program,
)
from agentlightning.types import Span, new_id


class House:
    """A door, and a program who is expected."""

    def __init__(self, door: Collector, address: str, keys: Keys) -> None:
        self.door, self.address, self.keys = door, address, keys
        self.spans: list[Span] = []
        attempt_id = new_id("at")
        self.key = keys.mint("ro-1", attempt_id)
        self.context = AttemptContext("ro-1", attempt_id, self.spans.append, key=self.key)
        self.program: ConnectedProgram = door.admit(self.context)

    async def say(self, *frames: bytes, key: str | None = None) -> bytes:
        """Say these after a greeting; what is answered until the door hangs up."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(packed(Hello(key or self.key, 1, "3")) + b"".join(frames))
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    def span(self, **other: str) -> bytes:
        ids = {"rollout_id": "ro-1", "attempt_id": self.context.attempt_id, **other}
        return packed(SpanEnded(Span(name="s", **ids)))


@pytest.fixture
async def house() -> AsyncIterator[House]:
    keys = Keys()
    door = Collector(keys)
    address = await door.start()
    yield House(door, address, keys)
    await door.stop()


async def test_spans_counts_and_adapters_are_taken(house: House) -> None:
    await house.say(
        house.span(), packed(Counted("lost", 2)), packed(Adapted("a", "broken")), packed(Adapted("a"))
    )
    assert [span.name for span in house.spans] == ["s"]
    assert house.program.counts == {"lost": 2} and house.program.adapters == {"a": None}
    assert house.program.processes == {1}


async def test_nobody_writes_to_another_attempt(house: House) -> None:
    await house.say(house.span(attempt_id="at-other"), house.span(rollout_id="ro-other"))
    assert house.spans == [] and sum(house.program.counts.values()) == 2


@pytest.mark.parametrize("key", ["agl-forged", "sk-vendor"])
async def test_a_wrong_key_opens_nothing(house: House, key: str) -> None:
    await house.say(house.span(), key=key)
    assert house.spans == [] and house.door.refused == {"unknown-key": 1}


async def test_a_key_opens_nothing_when_its_attempt_has_ended(house: House) -> None:
    await house.door.close_attempt(house.context)
    await house.say(house.span())
    house.keys.revoke(house.context.attempt_id)
    await house.say(house.span())
    assert house.spans == [] and house.door.refused == {"attempt-ended": 2}


async def test_entries_have_no_rollouts_unless_they_are_wanted(house: House) -> None:
    answer = await house.say(packed(BeginEntry("solve")))
    assert isinstance(to_program(answer[HEAD.size :]), EntryDenied)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (HEAD.pack(1 << 31), "no-frame"),
        (HEAD.pack(3) + b"abc", "no-frame"),
        (HEAD.pack(4) + b"\xff\xff\xff\xff", "no-frame"),
        (HEAD.pack(100) + b"half", "broken-off"),
        (b"\x00", "broken-off"),
    ],
)
async def test_nonsense_ends_the_connection_and_is_counted(house: House, sent: bytes, reason: str) -> None:
    await house.say(house.span(), sent)
    assert len(house.spans) == 1 and house.door.refused == {reason: 1}


async def test_who_does_not_greet_is_nobody(house: House) -> None:
    host, _, port = house.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(house.span())
    assert await reader.read() == b""
    writer.close()
    assert house.door.refused == {"no-greeting": 1} and house.spans == []


async def test_who_told_all_and_ended_at_once_is_heard(house: House) -> None:
    host, _, port = house.address.rpartition(":")
    with socket.create_connection((host, int(port))) as program:  # this loop is at something else meanwhile
        program.sendall(packed(Hello(house.key, 1, "3")) + house.span())
    await house.door.close_attempt(house.context)
    assert [span.name for span in house.spans] == ["s"] and not house.door.refused


async def test_what_cannot_be_read_takes_nothing_else_with_it(house: House) -> None:
    await house.say(HEAD.pack(3) + b"abc", house.span(), packed(Counted("lost", -5)), house.span())
    assert len(house.spans) == 2 and house.door.refused == {"no-frame": 2} and not house.program.counts


async def test_strangers_say_little(house: House) -> None:
    host, _, port = house.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HEAD.pack(GREETING + 1))
    assert await reader.read() == b""  # though the bytes never came
    writer.close()
    assert house.door.refused == {"no-frame": 1, "no-greeting": 1}


async def test_strangers_do_not_hold_the_door_open(house: House) -> None:
    host, _, port = house.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    while not house.door._unauthenticated:
        await asyncio.sleep(0)
    await house.door.stop()
    assert await reader.read() == b""
    writer.close()
