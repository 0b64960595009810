"""Work in a thread, in batches: order, errors and callers that are gone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agl_local.http.batches import Batches


def refuse() -> None:
    raise ValueError("no")


async def test_work_that_waits_is_done_in_one_go_and_an_error_is_its_callers_alone() -> None:
    batches, threads, opened = Batches(), [], threading.Event()

    async def counted(i: int) -> int:
        return await batches.do(lambda: (threads.append(threading.get_ident()), i)[1])

    first = asyncio.create_task(batches.do(opened.wait))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(counted(i)) for i in range(20)]
    bad = asyncio.create_task(batches.do(refuse))
    await asyncio.sleep(0)
    opened.set()
    assert await first is True
    assert await asyncio.gather(*rest) == list(range(20))
    with pytest.raises(ValueError, match="no"):
        await bad
    assert len({*threads}) == 1 and threads[0] != threading.get_ident()
    assert await batches.do(lambda: "again") == "again"


async def test_work_whose_caller_is_gone_is_left_out() -> None:
    batches, opened, done = Batches(), threading.Event(), []
    first = asyncio.create_task(batches.do(opened.wait))
    await asyncio.sleep(0)
    gone = asyncio.create_task(batches.do(lambda: done.append("gone")))
    stays = asyncio.create_task(batches.do(lambda: done.append("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    opened.set()
    await asyncio.gather(first, stays)
    assert done == ["stays"] and gone.cancelled()


async def test_nobody_waits_for_work_that_nobody_does() -> None:
    batches, opened = Batches(), threading.Event()
    waiting = [asyncio.create_task(batches.do(opened.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    assert batches._task is not None
    batches._task.cancel()
    opened.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found)
