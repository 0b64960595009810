"""The collector takes requests under an attempt's key, and for that attempt only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agl_programs import events
from agl_programs.collector import Collector, ConnectedProgram, adapter_errors
from agl_programs.inside import messages, otlp
from agl_programs.inside.messages import BeginEntry, EndEntry, EntryBegun, ProcessReport
from aiohttp import ClientSession

from agentlightning.keys import Keys
from agentlightning.plugins.stores import open_store
from agentlightning.store import Store
from agentlightning.types import Span


class Served:
    """A collector, and a program that it admits."""

    def __init__(self, store: Store, keys: Keys, collector: Collector, url: str) -> None:
        self.store, self.keys, self.collector, self.url = store, keys, collector, url
        self.rollout_id = self.attempt_id = self.key = ""
        self.program = ConnectedProgram()

    async def begin(self) -> None:
        lease = await self.store.start_rollout({})
        self.rollout_id, self.attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        self.key = self.keys.mint(self.rollout_id, self.attempt_id)
        self.program = self.collector.admit(self.attempt_id)

    async def post(self, body: Any, path: str = otlp.PATH, key: str | None = None) -> tuple[int, bytes]:
        """Status and body of an answer."""
        kind = otlp.CONTENT_TYPE if path == otlp.PATH else messages.CONTENT_TYPE
        headers = {"Authorization": f"Bearer {key or self.key}", "Content-Type": kind}
        async with ClientSession() as session, session.post(self.url + path, data=body, headers=headers) as r:
            return r.status, await r.read()

    async def names(self) -> list[str]:
        """Of the spans on file."""
        return [span.name for span in await self.store.query_spans(self.rollout_id)]

    def head(self, length: str = "Transfer-Encoding: chunked") -> bytes:
        return (
            f"POST {otlp.PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: {otlp.CONTENT_TYPE}\r\n{length}\r\n\r\n"
        ).encode()

    def connect(self) -> socket.socket:
        host, _, port = self.url.removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)))


def span(name: str, **attributes: Any) -> bytes:
    ids = {"trace_id": "ab" * 16, "span_id": name.encode().hex().rjust(16, "0")}
    return otlp.export_request(
        [Span(rollout_id="", attempt_id="", name=name, attributes=attributes, start_time=1.5, **ids)]
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    store, keys = open_store(tmp_path / "store.sqlite"), Keys()
    collector = Collector(store, keys)
    one = Served(store, keys, collector, await collector.start())
    await one.begin()
    yield one
    await collector.stop()
    await store.close()


async def test_spans_and_reports_are_taken(served: Served) -> None:
    report = ProcessReport("p", {"lost": 2}, {"a": "broken", "b": None})
    assert (await served.post(otlp.resource_report(messages.PROCESS, msgspec.to_builtins(report))))[0] == 200
    assert (await served.post(span("one") + span("two")))[0] == 200
    assert await served.names() == ["one", "two"]
    assert served.program.counts == {"lost": 2} and adapter_errors(served.program.reports.values()) == {
        "a": "broken",
        "b": None,
    }


async def test_a_later_report_replaces_the_one_before_and_processes_are_added_up(served: Served) -> None:
    for report in (
        ProcessReport("p", {"lost": 2}),
        ProcessReport("p", {"lost": 3}),
        ProcessReport("q", {"lost": 1}),
    ):
        await served.post(otlp.resource_report(messages.PROCESS, msgspec.to_builtins(report)))
    assert served.program.counts == {"lost": 4} and len(served.program.reports) == 2


async def test_a_report_that_is_none_is_counted_and_loses_no_span(served: Served) -> None:
    broken = otlp.resource_report(messages.PROCESS, {"process": "p", "counts": "many"})
    status, answer = await served.post(span("one") + broken + span("two"))
    assert status == 200 and b"cannot be decoded" in answer
    assert await served.names() == ["one", "two"]
    assert served.program.reports == {} and served.program.counts == {"otlp-damaged-span": 1}


async def test_spans_are_on_file_before_their_request_has_ended(served: Served) -> None:
    more = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield span("one")
        await more.wait()
        yield span("two")

    request = asyncio.create_task(served.post(parts()))
    while await served.names() != ["one"]:
        await asyncio.sleep(0.01)
    more.set()
    assert (await request)[0] == 200
    assert await served.names() == ["one", "two"]


async def test_a_span_that_is_sent_again_is_stored_once(served: Served) -> None:
    await served.post(span("one"))
    await served.post(span("one") + span("two"))
    assert await served.names() == ["one", "two"]


async def test_nobody_writes_to_another_attempt(served: Served) -> None:
    other = await served.store.start_rollout({})
    ids = {"agl.rollout_id": other.rollout.rollout_id, "agl.attempt_id": other.attempt.attempt_id}
    status, answer = await served.post(span("foreign", **ids))
    assert status == 200 and b"the key is that of attempt" in answer
    assert await served.store.query_spans(other.rollout.rollout_id) == []
    assert served.program.counts == {"otlp-foreign-attempt": 1}


@pytest.mark.parametrize("key", ["agl-forged", "sk-vendor"])
async def test_a_wrong_key_opens_nothing(served: Served, key: str) -> None:
    assert (await served.post(span("one"), key=key))[0] == 401
    assert await served.names() == [] and served.collector.refused == {"unknown-key": 1}


async def test_a_key_opens_nothing_when_its_attempt_has_ended(served: Served) -> None:
    served.collector.dismiss(served.attempt_id)
    assert (await served.post(span("one")))[0] == 409
    served.keys.revoke(served.attempt_id)
    assert (await served.post(span("two")))[0] == 409
    assert await served.names() == [] and served.collector.refused == {"attempt-ended": 2}


async def test_entries_have_no_rollouts_unless_they_are_wanted(served: Served) -> None:
    status, answer = await served.post(messages.encode(BeginEntry("solve")), messages.ENTRIES)
    assert status == 409 and b"--per-entry" in answer


async def test_an_entry_is_ended_with_its_own_key_only(served: Served) -> None:
    ended: list[tuple[str, EndEntry]] = []

    async def begin(entry: BeginEntry) -> EntryBegun:
        return EntryBegun("ro-2", "at-2", served.keys.mint("ro-2", "at-2"))

    async def end(attempt_id: str, how: EndEntry) -> None:
        ended.append((attempt_id, how))

    served.program.begin, served.program.end = begin, end
    begun = messages.decode(
        (await served.post(messages.encode(BeginEntry("solve")), messages.ENTRIES))[1], EntryBegun
    )
    served.collector.admit("at-2", served.program)
    path, how = messages.END.format(attempt_id="at-2"), EndEntry(reward=float("inf"))
    assert (await served.post(messages.encode(how), path))[0] == 409 and ended == []
    assert (await served.post(messages.encode(how), path, begun.key))[0] == 200
    assert ended == [("at-2", how)]


async def test_what_it_does_not_serve_is_refused_and_counted(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await served.post(b"", "/nowhere"))[0] == 404
    assert served.collector.refused == {"no-such-request": 1} and not caplog.records


@pytest.mark.parametrize("path", [otlp.PATH, messages.ENTRIES])
async def test_nonsense_is_refused(served: Served, path: str) -> None:
    async def begin(entry: BeginEntry) -> EntryBegun:
        raise AssertionError

    served.program.begin = begin
    status, _ = await served.post(b"\xff\xff\xff", path)
    assert (status, served.program.counts) in ((400, {}), (200, {"undecodable": 1}))
    await served.post(span("whole"))
    assert await served.names() == ["whole"]


async def test_spans_of_a_process_that_ends_at_once_are_stored(served: Served) -> None:
    with served.connect() as process:  # this loop is at something else meanwhile
        process.sendall(served.head() + chunk(span("one")) + chunk(span("two")))
    await served.collector.drain(served.program)
    assert await served.names() == ["one", "two"] and served.program.counts == {}


async def test_half_a_span_is_counted(served: Served) -> None:
    with served.connect() as process:
        process.sendall(served.head() + chunk(span("one")) + chunk(span("half"))[:-20])
    await served.collector.drain(served.program)
    assert await served.names() == ["one"] and served.program.counts == {"broken-off": 1}


async def test_a_process_that_is_left_behind_is_cut_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl_programs.collector.DRAIN_SECONDS", 0.1)
    with served.connect() as process:
        process.sendall(served.head() + chunk(span("one")))
        await served.collector.drain(served.program)
        assert process.recv(1) == b""
    assert await served.names() == ["one"] and served.program.counts == {"process-left-behind": 1}


async def test_another_program_is_not_waited_for(served: Served) -> None:
    first, attempt_id = served.program, served.attempt_id
    await served.begin()
    with served.connect() as process:
        process.sendall(served.head() + chunk(span("one")))
        while await served.names() != ["one"]:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(300):
            await served.collector.drain(first)
        served.collector.dismiss(attempt_id)
        process.sendall(chunk(span("two")) + chunk(b""))
        assert await asyncio.to_thread(process.recv, 12) == b"HTTP/1.1 200"
    assert await served.names() == ["one", "two"] and first.counts == served.program.counts == {}


class Failing:
    """A store without ``batch``, whose writes fail in turn."""

    def __init__(self, store: Store, errors: Iterator[Exception | None]) -> None:
        self._store, self._errors = store, errors

    async def add_span(self, span: Span, *, request_id: str | None = None) -> Span:
        if (error := next(self._errors)) is not None:
            raise error
        return await self._store.add_span(span, request_id=request_id)

    async def count(self, *args: Any, **kwargs: Any) -> None:
        await self._store.count(*args, **kwargs)


async def test_spans_that_cannot_be_stored_are_counted(served: Served) -> None:
    from agentlightning.store import StoreError

    served.collector._store = Failing(served.store, iter([None, StoreError("disk full"), None]))  # type: ignore[assignment]
    await served.post(span("one"))
    _, answer = await served.post(span("two"))
    assert b"disk full" in answer
    await served.post(span("three"))
    assert await served.names() == ["one", "three"] and served.program.counts == {"unstored-span": 1}


@pytest.mark.parametrize("depth", [300, 900, 980, 1100, 3000])
async def test_an_event_that_is_nested_too_deeply_is_refused_and_counted(
    served: Served, depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = events.PATH.format(rollout_id=served.rollout_id, attempt_id=served.attempt_id)
    event = f'{{"event_type": "note", "data": {{"x": {"[" * depth}{"]" * depth}}}}}'
    status, told = await served.post(event.encode(), path)
    kept = len(await served.names())
    assert (status, kept, served.program.refused["bad-event"]) in [(200, 1, 0), (422, 0, 1)], told
    assert status == 422 or depth < 1000
    assert not [one for one in caplog.records if one.exc_info]


async def test_an_entry_whose_task_is_nested_too_deeply_is_refused(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def begun(entry: BeginEntry) -> EntryBegun:
        raise AssertionError("no entry can be read")

    served.program.begin = begun
    deep = b"\x82\xa5entry\xa1e\xa4task" + b"\x91" * 3000 + b"\xc0"
    assert (await served.post(deep, messages.ENTRIES))[0] == 400
    assert not [one for one in caplog.records if one.exc_info]
