"""A log file of several writers: nothing is lost at a rotation, and no more files are kept than asked for."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from agl_audit.run_log import RotatingLog


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "", 0, text, (), None)


def lines(folder: Path) -> list[str]:
    return [
        line
        for file in folder.glob("a.log*")
        if file.suffix != ".lock"
        for line in file.read_text().split("\n")
        if line
    ]


def test_a_full_file_is_renamed_and_the_oldest_dropped(tmp_path: Path) -> None:
    handler = RotatingLog(tmp_path / "a.log", most_bytes=10, kept=2)
    for number in range(6):
        handler.emit(record(f"line {number} ......"))
    handler.close()
    assert (tmp_path / "a.log").read_text().startswith("line 5")
    assert (tmp_path / "a.log.1").read_text().startswith("line 4")
    assert (tmp_path / "a.log.2").read_text().startswith("line 3")
    assert not (tmp_path / "a.log.3").exists()


def test_another_writers_rotation_is_noticed(tmp_path: Path) -> None:
    first, second = (RotatingLog(tmp_path / "a.log", most_bytes=30, kept=9) for _ in range(2))
    for number in range(12):
        (first, second)[number % 2].emit(record(f"line {number:3}"))
    assert sorted(lines(tmp_path)) == [f"line {number:3}" for number in range(12)]
    assert (tmp_path / "a.log.2").exists()
    first.close()
    second.close()


def test_many_writers_lose_no_line(tmp_path: Path) -> None:
    """Each thread has a handler of its own, as processes have."""

    def write(name: int) -> None:
        handler = RotatingLog(tmp_path / "a.log", most_bytes=2_000, kept=99)
        for number in range(100):
            handler.emit(record(f"{name} {number}"))
        handler.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(lines(tmp_path)) == sorted(f"{name} {number}" for name in range(4) for number in range(100))
