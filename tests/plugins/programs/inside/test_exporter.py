"""The exporter sends from any thread, from within itself, after forks and broken connections."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
from agl_programs.inside import messages
from agl_programs.inside.exporter import UNDELIVERED, SpanExporter
from agl_programs.inside.messages import BeginEntry, ProcessReport

from agentlightning.capture.delivery import COUNTS
from agentlightning.types import Span
from agl_cluster.store import otlp


class Server:
    """Reads requests, connection by connection."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def bodies(self, answer: bytes = b"") -> list[bytes]:
        """The parts of the next connection's body, until it ends; ``answer`` is sent behind the last one."""
        connection, _ = self.socket.accept()
        data, parts = b"", []
        with connection:
            while read := connection.recv(65536):
                data += read
                if data.endswith(b"\r\n0\r\n\r\n") and answer:
                    connection.sendall(answer)
        head, _, body = data.partition(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head
        while body:
            length, _, rest = body.partition(b"\r\n")
            if len(rest) < int(length, 16) + 2:  # broken off
                break
            parts.append(rest[: int(length, 16)])
            body = rest[int(length, 16) + 2 :]
        return parts

    def names(self) -> list[str]:
        """The spans of the next connection."""
        return [span.name for part in self.bodies() for span in decoded(part)]


def decoded(part: bytes) -> list[Span]:
    return list(otlp.spans(otlp.decode(part, otlp.PROTOBUF)[0]))


def report(part: bytes) -> ProcessReport:
    ((resource, _),) = otlp.decode(part, otlp.PROTOBUF)[0]
    return msgspec.convert(otlp.attributes(resource.attributes)[messages.PROCESS], ProcessReport)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.socket.close()


@pytest.fixture(autouse=True)
def _counts() -> Iterator[None]:
    COUNTS.clear()
    yield
    COUNTS.listener = None


def span(name: str) -> Span:
    return Span(rollout_id="ro", attempt_id="at", name=name, trace_id="ab" * 16, span_id="cd" * 8)


def end(exporter: SpanExporter) -> None:
    """As the end of the process does it."""
    for stream in exporter._streams.values():
        stream.close()


def test_it_reports_once_and_keeps_the_order(server: Server) -> None:
    exporter = SpanExporter(server.url, "agl-key")
    COUNTS.listener = lambda reason, times: exporter.report()
    exporter.span("agl-key", span("a"))
    exporter.adapter("framework")
    exporter.span("agl-key", span("b"))
    COUNTS.add("why", 2)
    end(exporter)
    first, began, adapted, second, counted = server.bodies()
    assert [decoded(part)[0].name for part in (first, second)] == ["a", "b"]
    assert report(began).counts == {} and report(adapted).adapters == {"framework": None}
    assert report(counted).counts == {"why": 2} and report(counted).process == report(began).process


def test_attempts_have_requests_of_their_own(server: Server) -> None:
    exporter = SpanExporter(server.url, "own")
    exporter.report()
    exporter.span("entry", span("of an entry"))
    exporter.span("own", span("of the process"))
    end(exporter)
    assert server.names() == ["of the process"] and server.names() == ["of an entry"]


def test_flush_waits_for_the_answer(server: Server) -> None:
    exporter = SpanExporter(server.url, "k")
    exporter.span("k", span("a"))
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    heard: list[list[bytes]] = []
    reader = threading.Thread(target=lambda: heard.append(server.bodies(answer)))
    reader.start()
    exporter.flush()
    reader.join()
    assert heard[0][-1] == b"" and COUNTS.snapshot() == {}


def test_many_threads_lose_and_mix_nothing(server: Server) -> None:
    exporter = SpanExporter(server.url, "k")

    def send(i: int) -> None:
        for n in range(50):
            exporter.span("k", span(f"{i}.{n}"))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(8)]
    heard: list[list[str]] = []
    reader = threading.Thread(target=lambda: heard.append(server.names()))
    reader.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    end(exporter)
    reader.join()
    assert sorted(heard[0]) == sorted(f"{i}.{n}" for i in range(8) for n in range(50))


def test_a_span_that_ends_while_another_is_sent_waits_its_turn(server: Server) -> None:
    exporter = SpanExporter(server.url, "k")
    write, first = exporter._written, [True]

    def nested(key: str, encoded: bytes) -> bool:
        if first.pop() if first else False:
            exporter.span("k", span("inner"))  # as a destructor would
        return write(key, encoded)

    exporter._written = nested  # type: ignore[method-assign]
    exporter.span("k", span("outer"))
    end(exporter)
    assert server.names() == ["outer", "inner"]


def test_a_fork_has_a_request_of_its_own(server: Server) -> None:
    exporter = SpanExporter(server.url, "k")
    exporter.span("k", span("parent"))
    if not (child := os.fork()):
        exporter.span("k", span("child"))
        os._exit(0)
    os.waitpid(child, 0)
    exporter.span("k", span("parent again"))
    end(exporter)
    parents = server.bodies()
    assert [one.name for part in parents for one in decoded(part)] == ["parent", "parent again"]
    sent, began = server.bodies()
    assert decoded(sent)[0].name == "child" and report(began).process != report(parents[1]).process


def test_undelivered_spans_are_counted_and_reported_later(capsys: pytest.CaptureFixture[str]) -> None:
    first = Server()
    exporter = SpanExporter(first.url, "k")
    COUNTS.listener = lambda reason, times: exporter.report()
    first.socket.close()
    exporter.span("k", span("lost"))
    exporter.span("k", span("lost too"))
    assert capsys.readouterr().err.count("agl run cannot be reached") == 1
    again = Server()
    exporter._streams.clear()
    exporter._url = again.url
    exporter.span("k", span("kept"))
    end(exporter)
    kept, reported = again.bodies()
    assert decoded(kept)[0].name == "kept" and report(reported).counts == {UNDELIVERED: 2}
    again.socket.close()


@pytest.mark.parametrize("damage", ["half \ud800", "id"])
def test_unencodable_spans_are_counted(server: Server, damage: str) -> None:
    exporter = SpanExporter(server.url, "k")
    bad = span(damage)
    bad.span_id = "no hexadecimal" if damage == "id" else bad.span_id
    exporter.span("k", bad)
    exporter.span("k", span("whole"))
    end(exporter)
    assert server.names() == ["whole"] and COUNTS.snapshot() == {"unencodable": 1}


def test_a_refusal_is_counted_and_the_next_span_tries_again(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    exporter = SpanExporter(server.url, "k")
    exporter.span("k", span("refused"))
    connection, _ = server.socket.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 409 Conflict\r\nContent-Length: 5\r\n\r\nended")
    connection.close()
    while not exporter._streams["k"].answered():
        pass
    exporter.span("k", span("after"))
    end(exporter)
    assert server.names() == ["after"] and COUNTS.snapshot() == {UNDELIVERED: 1}
    assert "agl run refuses spans: ended" in capsys.readouterr().err


def _fileno(exporter: SpanExporter) -> int:
    connection = exporter._streams["k"]._http.sock
    assert connection is not None
    return connection.fileno()


def test_a_descriptor_that_is_another_file_by_now_is_left_alone(server: Server) -> None:
    exporter = SpanExporter(server.url, "k")
    exporter.span("k", span("before"))
    number = _fileno(exporter)
    reader, writer = os.pipe()
    os.dup2(writer, number)  # the program closed that number, and a file of its own has it
    exporter.span("k", span("after"))
    end(exporter)
    os.close(writer)
    os.close(number)
    assert os.read(reader, 100) == b""
    os.close(reader)
    assert server.names() == ["before"] and server.names() == ["after"]


def test_a_fork_leaves_files_of_the_program_alone(server: Server) -> None:
    exporter = SpanExporter(server.url, "k")
    exporter.span("k", span("before"))
    number = _fileno(exporter)
    reader, writer = os.pipe()
    os.dup2(writer, number)  # a daemon closed all its files, and opened one of its own
    if not (child := os.fork()):
        os.write(number, b"!")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1) == b"!"
    end(exporter)
    for one in (reader, writer, number):
        os.close(one)


def test_an_interrupted_span_is_sent_again(server: Server) -> None:
    exporter = SpanExporter(server.url, "k")
    exporter.span("k", span("before"))
    stream = exporter._streams["k"]
    send = stream._http.send

    def half(data: bytes) -> None:
        """Is interrupted by Ctrl-C when half is out."""
        send(data[: len(data) // 2])
        raise KeyboardInterrupt

    stream._http.send = half  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        exporter.span("k", span("interrupted"))
    stream._http.send = send  # type: ignore[method-assign]
    exporter.span("k", span("after"))
    end(exporter)
    assert server.names() == ["before"]
    assert server.names() == ["interrupted", "after"]


@pytest.mark.parametrize("task", [1 << 70, "half \ud800"])
def test_an_unencodable_entry_is_an_error(server: Server, task: object) -> None:
    with pytest.raises(ValueError):
        SpanExporter(server.url, "k").begin_entry(BeginEntry("solve", task))
