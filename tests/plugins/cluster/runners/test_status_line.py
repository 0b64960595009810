"""The status line of a runner."""

from __future__ import annotations

import io

from rich.console import Console

from agl_cluster.runners.service import RunnerState
from agl_cluster.runners.status_line import StatusLine


def short_repr(terminal: bool) -> str:
    out = io.StringIO()
    with StatusLine("http://store", 3, Console(file=out, force_terminal=terminal, width=60)) as line:
        line.show(RunnerState({"succeeded": 2, "failed": 1, "killed": 1}, 4))
        line.show(RunnerState({"succeeded": 5, "failed": 1, "killed": 1}, 2, restarts=1))
    return out.getvalue()


def test_a_log_has_lines_now_and_then_and_the_last_word() -> None:
    first, last = short_repr(terminal=False).splitlines()
    assert "agl runner · http://store · 3 workers · 4 running · 2 succeeded · 1 failed · 1 killed · " in first
    assert "2 running · 5 succeeded" in last and last.endswith("/s · 1 restarted")


def test_a_terminal_has_one_line() -> None:
    assert "5" in short_repr(terminal=True) and "\x1b[" in short_repr(terminal=True)


def test_nothing_that_happened_is_not_printed_twice() -> None:
    out = io.StringIO()
    with StatusLine("s", 1, Console(file=out)) as line:
        for _ in range(5):
            line.show(RunnerState())
    assert len(out.getvalue().splitlines()) == 1
