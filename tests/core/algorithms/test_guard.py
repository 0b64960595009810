"""What a run waits for: its work, or the runner's death; and what it stops has ended before it goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentlightning.algorithms import context as module
from agentlightning.algorithms.context import AgentResources, Context, EngineDied


def context(runner: asyncio.Task[None] | None, driver: Any = None) -> Context:
    made: Any = Context.__new__(Context)
    made.runner, made.driver, made.resources = runner, driver, AgentResources()
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


class Watched:
    """A driver whose engine dies when the test says so."""

    how: str | None = None

    def engine_died(self) -> str | None:
        return self.how


@pytest.mark.parametrize("nested", [False, True])
async def test_an_engine_that_dies_ends_the_work_and_is_named(
    nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCH", 0.0)
    work, driver = Work(), Watched()

    async def kill() -> None:
        await work.begun.wait()
        driver.how = "signal 9 (SIGKILL)"

    made = context(None, driver)
    killing = asyncio.create_task(kill())
    with pytest.raises(EngineDied, match=r"the engine of policy 'policy' died: signal 9 \(SIGKILL\)"):
        await made.guard(made.guard(work()) if nested else work())
    assert work.ended
    await killing


async def test_what_agents_saw_of_a_dead_engine_is_not_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where their calls fail before anybody has looked at the engine."""
    driver = Watched()

    async def fail() -> None:
        driver.how = "exit status 1"
        raise ValueError("502 Cannot connect")

    with pytest.raises(EngineDied, match="exit status 1"):
        await context(None, driver).guard(fail())
    driver.how = None
    with pytest.raises(ValueError, match="502"):
        await context(None, Watched()).guard(_raise())


async def _raise() -> None:
    raise ValueError("502 Cannot connect")
