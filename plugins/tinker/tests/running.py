"""The server in a thread of this process, which tests may stop and start again on the same folder."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from agl_local.policy.folder import load_policy
from agl_tinker.server.app import TinkerServer


class Running:
    """Serves the policy in ``folder`` under its folder's name; ``server`` is the object that does."""

    def __init__(self, folder: Path, state: Path, **options: Any) -> None:
        self.folder, self.state, self.options = folder, state, options
        self.port = 0

    def __enter__(self) -> Running:
        torch.set_num_threads(1)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        ready: Future[str] = Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), daemon=True)
        self._thread.start()
        self.url = ready.result(60)
        self.port = int(self.url.rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self._loop.close()

    def restart(self) -> None:
        """End it and serve again at the same address, by another object: all it knows is in the folder."""
        self.__exit__()
        self.__enter__()

    def call(self, work: Any) -> Any:
        """The result of a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _main(self, ready: Future[str]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[str]) -> None:
        policy = load_policy(self.folder)
        self.server = TinkerServer(policy, self.folder.name, self.state, **self.options)
        ready.set_result(await self.server.start(port=self.port))
        await self._stop.wait()
        await self.server.close()
