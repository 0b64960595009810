"""Shows the state of runners in one line: updated on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.live import Live
from rich.text import Text

from agentlightning.terminal import Console
from agl_cluster.runners.service import RunnerState

PRINT_SECONDS = 10.0
"""Seconds between two lines, if there is no terminal."""
_ORDER = ("succeeded", "failed", "timeout", "unresponsive")
_STYLE = {"succeeded": "green", "failed": "red", "timeout": "yellow"}


class StatusLine:
    """The line of ``workers`` runners on the store ``place``. Use it as a context manager."""

    def __init__(self, place: str, workers: int, console: Console | None = None) -> None:
        self._place = place
        self._workers = workers
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._began = time.monotonic()
        self._last = RunnerState()
        self._printed = RunnerState()
        self._next = 0.0

    def __enter__(self) -> StatusLine:
        if self._console.is_terminal:
            self._live = Live(self._text(), console=self._console, refresh_per_second=4).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
        elif self._last != self._printed or kind is None:
            self._print()

    def show(self, state: RunnerState) -> None:
        """Show a new state."""
        self._last = state
        if self._live is not None:
            self._live.update(self._text())
        elif state != self._printed and time.monotonic() >= self._next:
            self._print()

    def _print(self) -> None:
        self._printed, self._next = self._last, time.monotonic() + PRINT_SECONDS
        self._console.print(self._text(), soft_wrap=True)

    def _text(self) -> Text:
        state = self._last
        done = sum(state.counts.get(name, 0) for name in _ORDER)
        seconds = max(time.monotonic() - self._began, 1e-9)
        text = Text("agl runner", style="bold")
        text.append(f" · {self._place}", style="dim")
        if self._workers > 1:
            text.append(f" · {self._workers} workers", style="none")
        text.append(f" · {state.running} running", style="none")
        for name in [*_ORDER, *sorted(set(state.counts) - set(_ORDER))]:
            if state.counts.get(name):
                text.append(f" · {state.counts[name]} {name}", style=_STYLE.get(name, "none"))
        text.append(f" · {done / seconds:.1f}/s", style="none")
        if state.restarts:
            text.append(f" · {state.restarts} restarted", style="yellow")
        return text
