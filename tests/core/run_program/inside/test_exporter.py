"""The line to ``agl run``: from any thread, from within itself, after forks and breaks; losses are told."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from agentlightning.run_program.inside.exporter import UNDELIVERED, SpanExporter
from agentlightning.run_program.inside.frames import (
    HEAD,
    BeginEntry,
    Counted,
    FromProgram,
    Hello,
    SpanEnded,
    from_program,
)
from agentlightning.types import Span


class Collector:
    """Reads frames, connection by connection."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    def heard(self) -> list[FromProgram]:
        """The frames of the next connection, until it ends."""
        connection, _ = self.socket.accept()
        data = bytearray()
        with connection:
            while part := connection.recv(65536):
                data += part
        frames = []
        while data:
            (length,) = HEAD.unpack(data[: HEAD.size])
            if len(data) < HEAD.size + length:  # broken off
                break
            frames.append(from_program(bytes(data[HEAD.size : HEAD.size + length])))
            del data[: HEAD.size + length]
        return frames


@pytest.fixture
def door() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.socket.close()


def span(name: str) -> Span:
    return Span(rollout_id="ro", attempt_id="at", name=name)


def names(frames: list[FromProgram]) -> list[str]:
    return [frame.span.name for frame in frames if isinstance(frame, SpanEnded)]


def test_it_greets_once_and_keeps_the_order(door: Collector) -> None:
    line = SpanExporter(door.address, "agl-key")
    line.greet()
    line.span(span("a"))
    line.count("why", 2)
    line._hang_up()
    hello, first, second = door.heard()
    assert isinstance(hello, Hello) and (hello.key, hello.pid) == ("agl-key", os.getpid())
    assert names([first]) == ["a"] and second == Counted("why", 2)


def test_many_threads_lose_and_mix_nothing(door: Collector) -> None:
    line = SpanExporter(door.address, "k")
    threads = [
        threading.Thread(target=lambda i=i: [line.span(span(f"{i}.{n}")) for n in range(50)])
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    heard: list[list[FromProgram]] = []
    reader = threading.Thread(target=lambda: heard.append(door.heard()))
    reader.start()
    for thread in threads:
        thread.join()
    line._hang_up()
    reader.join()
    assert sorted(names(heard[0])) == sorted(f"{i}.{n}" for i in range(8) for n in range(50))


def test_a_span_that_ends_while_another_is_sent_waits_its_turn(door: Collector) -> None:
    line = SpanExporter(door.address, "k")
    write, first = line._write, [True]

    def nested(data: bytes) -> None:
        if first.pop() if first else False:
            line.span(span("inner"))  # as a destructor would
        write(data)

    line._write = nested  # type: ignore[method-assign]
    line.span(span("outer"))
    line._hang_up()
    assert names(door.heard()) == ["outer", "inner"]


def test_a_fork_has_a_line_of_its_own(door: Collector) -> None:
    line = SpanExporter(door.address, "k")
    line.span(span("parent"))
    if not (child := os.fork()):
        line.span(span("child"))
        os._exit(0)
    os.waitpid(child, 0)
    line.span(span("parent again"))
    line._hang_up()
    assert names(door.heard()) == ["parent", "parent again"]
    ours, *frames = door.heard()
    assert isinstance(ours, Hello) and ours.pid == child and names(frames) == ["child"]


def test_what_could_not_be_sent_is_counted_and_told_later(capsys: pytest.CaptureFixture[str]) -> None:
    first = Collector()
    line = SpanExporter(first.address, "k")
    first.socket.close()
    line.span(span("lost"))
    line.span(span("lost too"))
    assert capsys.readouterr().err.count("agl run cannot be reached") == 1
    again = socket.create_server(("127.0.0.1", line._place[1]))
    line.span(span("kept"))
    line._hang_up()
    door = Collector()
    door.socket.close()
    door.socket = again
    frames = door.heard()
    assert Counted(UNDELIVERED, 2) in frames and names(frames) == ["kept"]
    again.close()


def test_what_has_no_form_is_counted(door: Collector) -> None:
    line = SpanExporter(door.address, "k")
    line.span(Span(rollout_id="ro", attempt_id="at", name="half \ud800"))
    line.span(span("whole"))
    line._hang_up()
    frames = door.heard()
    assert Counted("unencodable") in frames and names(frames) == ["whole"]


def test_a_number_that_is_another_file_by_now_is_left_alone(door: Collector, tmp_path: object) -> None:
    line = SpanExporter(door.address, "k")
    line.span(span("before"))
    assert line._connection is not None
    number = line._connection.fileno()
    reader, writer = os.pipe()
    os.dup2(writer, number)  # the program closed that number, and a file of its own has it
    line.span(span("after"))
    line._hang_up()
    os.close(writer)
    os.close(number)
    assert os.read(reader, 100) == b""
    os.close(reader)
    assert names(door.heard()) == ["before"] and names(door.heard()) == ["after"]


def test_a_fork_leaves_other_peoples_files_alone(door: Collector) -> None:
    line = SpanExporter(door.address, "k")
    line.span(span("before"))
    assert line._connection is not None
    number = line._connection.fileno()
    reader, writer = os.pipe()
    os.dup2(writer, number)  # a daemon closed all its files, and opened one of its own
    if not (child := os.fork()):
        os.write(number, b"!")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1) == b"!"
    line._hang_up()
    for one in (reader, writer, number):
        os.close(one)


def test_who_is_interrupted_in_a_frame_says_it_again(door: Collector) -> None:
    line = SpanExporter(door.address, "k")
    connected = line._connected
    line.span(span("before"))

    class Half:
        """Is interrupted by Ctrl-C when half is out."""

        def sendall(self, data: bytes) -> None:
            connected().sendall(data[: len(data) // 2])
            raise KeyboardInterrupt

    line._connected = lambda: Half()  # type: ignore[assignment, return-value]
    with pytest.raises(KeyboardInterrupt):
        line.span(span("interrupted"))
    line._connected = connected  # type: ignore[method-assign]
    line.span(span("after"))
    line._hang_up()
    assert names(door.heard()) == ["before"]
    assert names(door.heard()) == ["interrupted", "after"]


@pytest.mark.parametrize("task", [1 << 70, "half \ud800"])
def test_a_question_that_has_no_form_is_an_error_to_whoever_asks(door: Collector, task: object) -> None:
    with pytest.raises(ValueError):
        SpanExporter(door.address, "k").ask(BeginEntry("solve", task))
