"""What a fetch is doing, told on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agentlightning.terminal import Console

SECONDS = 10.0
"""Between two lines about the same work, where stderr is no terminal."""
_LOOK = 0.2
"""Seconds between two looks at the files of a download."""


class FetchProgress:
    """One piece of work after another; :func:`fetch_progress` makes it."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task("", total=None, amount="")
        self._what, self._said = "", 0.0

    def begin(self, what: str, size: str = "") -> None:
        """Say what is done from now on."""
        self._what = what
        self._bar.update(self._task, description=what, completed=0, total=None, amount=size)
        self._line(f"{what} {size}".rstrip())

    def wait(self) -> None:
        """Say that another process has the cache."""
        self.begin("waiting for another process that fetches a model")

    def at(self, done: int, total: int, amount: str) -> None:
        """Say how far it is; ``amount``: the same in words."""
        self._bar.update(self._task, completed=done, total=total, amount=amount)
        if time.monotonic() - self._said >= SECONDS:
            self._line(f"{self._what}: {amount}")

    def tensors(self, done: int, total: int) -> None:
        """Say how many tensors are converted."""
        self.at(done, total, f"{done} of {total} tensors")

    @contextmanager
    def watched(self, folder: Path, pattern: str, total: int) -> Iterator[None]:
        """Show, until it is left, how many of ``total`` bytes lie in the files of ``folder`` that match.

        It is the one measure that each way to download has, whichever version of its library.
        """
        left = threading.Event()

        def look() -> None:
            while not left.wait(_LOOK):
                done = min(bytes_in(folder, pattern), total)
                self.at(done, total, f"{decimal(done)} of {decimal(total)}")

        thread = threading.Thread(target=look, name="agl-fetch-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            left.set()
            thread.join()

    def _line(self, text: str) -> None:
        self._said = time.monotonic()
        if not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def fetch_progress() -> Iterator[FetchProgress]:
    """Show on stderr what is fetched, until it is left."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield FetchProgress(console, bar)


def bytes_in(folder: Path, pattern: str) -> int:
    """Return the size of the files below ``folder`` whose name matches; they may come and go meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in fnmatch.filter(names, pattern):
            try:
                size += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # renamed or removed since
                continue
    return size
