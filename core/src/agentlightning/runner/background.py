"""A runner that serves while something else goes on, as beside an algorithm's loop."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from agentlightning.runner.runner import Runner

FINISH_SECONDS = 30.0
"""Seconds that running rollouts have to finish when the stack closes without an error."""
FINISH_SECONDS_AFTER_ERROR = 2.0


def serve_in_background(runner: Runner, stack: AsyncExitStack) -> asyncio.Task[None]:
    """Serve the queue until the stack closes, which raises the runner's error if it has no other."""
    stop = asyncio.Event()
    task = asyncio.create_task(runner.serve(stop))

    async def finish(kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        runner.drain = FINISH_SECONDS if kind is None else FINISH_SECONDS_AFTER_ERROR
        stop.set()
        results = await asyncio.gather(task, return_exceptions=True)
        if kind is None and isinstance(results[0], Exception):
            raise results[0]

    stack.push_async_exit(finish)
    return task
