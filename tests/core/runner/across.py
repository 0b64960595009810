"""An event between event loops: agents run on another loop than the test that watches them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Event:
    """As ``asyncio.Event``, and set and awaited from any loop."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._mutex:
            self._set, waiting, self._waiting = True, self._waiting, []
        for future in waiting:
            with suppress(RuntimeError):  # its loop has ended
                future.get_loop().call_soon_threadsafe(_wake, future)

    def clear(self) -> None:
        self._set = False

    async def wait(self) -> None:
        with self._mutex:
            if self._set:
                return
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
        await future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
