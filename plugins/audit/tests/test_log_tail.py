"""Reading a log: its end, what comes later, and what comes after a rotation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from agl_audit.log_tail import LogLine, follow, last_entries, parse
from agl_audit.run_log import run_log


def test_the_last_entries_are_whole_and_reach_into_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert last_entries(path, 5) == []
    path.with_name("a.log.1").write_text("one\ntwo\n    of two\n")
    path.write_text("three\n")
    assert last_entries(path, 2) == ["two\n    of two", "three"]
    assert last_entries(path, 9) == ["one", "two\n    of two", "three"] and last_entries(path, 0) == []


def test_an_entry_has_parts() -> None:
    assert parse("2026-01-31 12:00:00 my-run INFO step 1\n    more") == LogLine(
        time="2026-01-31 12:00:00", run="my-run", level="INFO", text="step 1\n    more"
    )
    assert parse("something else") == LogLine(text="something else")


def test_following_waits_for_the_file_and_outlives_rotations(tmp_path: Path) -> None:
    path = tmp_path / "a.log"

    def happenings() -> Iterator[None]:
        """What other processes do while the reader waits."""
        path.write_text("one\ntw")
        yield
        with path.open("a") as file:
            file.write("o\n")
        yield
        with path.open("a") as file:
            file.write("three\n")
        path.rename(tmp_path / "a.log.1")
        yield
        path.write_text("four\n")
        yield

    happening = happenings()
    lines = follow(path, sleep=lambda seconds: next(happening))
    assert list(islice(lines, 4)) == ["one", "two", "three", "four"]
    lines.close()


def test_following_begins_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old\n")

    def write(seconds: float) -> None:
        with path.open("a") as file:
            file.write("new\n")

    with closing(follow(path, sleep=write)) as lines:
        assert next(lines) == "new"


def test_the_log_of_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder, every = tmp_path / "first", tmp_path / "logs" / "training.log"
    with run_log(folder, every) as run:
        run.start({"run_id": "first", "about": {"agent": "clerk"}})
        logging.getLogger("agentlightning.x").warning("look\nout")
    for path in (folder / "training.log", every):
        lines = [parse(line) for line in path.read_text().splitlines()]
        assert [(line.level, line.text) for line in lines] == [
            ("INFO", "started: agent clerk"),
            ("WARNING", "agentlightning.x: look"),
            ("", "    out"),
        ]
    assert {parse(line).run for line in every.read_text().splitlines()} == {"first", ""}
