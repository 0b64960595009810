"""Work that is done in a thread, all that waits in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Work = tuple[asyncio.Future[Any], Callable[[], Any]]


class Batches:
    """Work in the order in which it came. The results of one go come in the same turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: list[Work] = []
        self._now: list[Work] = []
        self._task: asyncio.Task[None] | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """Return ``work()``. Work whose caller was cancelled before its turn is left out."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, work))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._over)
        return await future

    async def _run(self) -> None:
        while self._waiting:
            self._now, self._waiting = self._waiting, []
            for (future, _), (done, result) in zip(
                self._now, await asyncio.to_thread(_done, self._now), strict=True
            ):
                if future.done():
                    continue
                if done:
                    future.set_result(result)
                else:
                    future.set_exception(result)

    def _over(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # nobody is left to do what waits
            for future, _ in [*self._now, *self._waiting]:
                future.cancel()
            self._waiting = []


def _done(works: list[Work]) -> list[tuple[bool, Any]]:
    """Return of each whether it was done, and its result or error."""
    results: list[tuple[bool, Any]] = []
    for future, work in works:
        try:
            results.append((True, None if future.cancelled() else work()))
        except Exception as error:
            results.append((False, error))
    return results
