"""What a run waits for: its work, or the runner's death; and what it stops has ended before it goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlightning.algorithms.context import Context


def context(runner: asyncio.Task[None] | None) -> Context:
    made: Any = Context.__new__(Context)
    made.runner = runner
    found: Context = made
    return found


async def for_ever() -> None:
    await asyncio.Event().wait()


class Work:
    """Work that takes a while to end when it is stopped."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), False

    async def __call__(self) -> int:
        try:
            self.begun.set()
            await for_ever()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.ended = True
        return 1


async def test_the_result_is_the_works() -> None:
    runner = asyncio.create_task(for_ever())
    assert await context(runner).guard(asyncio.sleep(0, 7)) == 7
    assert await context(None).guard(asyncio.sleep(0, 7)) == 7
    runner.cancel()


@pytest.mark.parametrize("nested", [False, True])
async def test_a_runner_that_dies_ends_the_work_and_says_why(nested: bool) -> None:
    work = Work()

    async def die() -> None:
        await work.begun.wait()
        raise OSError("no space left")

    made = context(asyncio.create_task(die()))
    with pytest.raises(OSError, match="no space left"):
        await made.guard(made.guard(work()) if nested else work())
    assert work.ended


async def test_a_runner_that_only_ends_is_an_error_too() -> None:
    work = Work()
    with pytest.raises(RuntimeError, match="the runner stopped before the run was done"):
        await context(asyncio.create_task(asyncio.sleep(0))).guard(work())


@pytest.mark.parametrize("runs", [False, True])
async def test_work_that_is_stopped_has_ended_on_return(runs: bool) -> None:
    work, runner = Work(), asyncio.create_task(for_ever())
    guarded = asyncio.create_task(context(runner if runs else None).guard(work()))
    await work.begun.wait()
    guarded.cancel()
    with pytest.raises(asyncio.CancelledError):
        await guarded
    assert work.ended
    runner.cancel()
