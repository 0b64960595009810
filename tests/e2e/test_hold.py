"""An engine gives up its calls to get new weights: agents only wait, and what is trained is what they got.

On the real trainer, runner, gateway and store, with rollouts of the next step under way.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from agl_testing.replies import Reply, answer_of
from e2e.test_ahead import SIZE, TASKS, Play, ages, line


@pytest.mark.slow
@pytest.mark.parametrize("how", [
    Reply(message="half an", finish_reason="abort"),
    Reply(status=500, message="the engine sleeps"),
    Reply(fault="disconnect"),
], ids=["abort", "500", "cut"])  # fmt: skip
async def test_calls_given_up_for_new_weights_are_asked_again(how: Reply, tmp_path: Path) -> None:
    give_up, asked = asyncio.Event(), asyncio.Event()

    held: list[dict[str, Any]] = []

    async def reply(body: dict[str, Any]) -> str | Reply:
        """Version 0 answers calls of step 0 and gives up calls of step 1, which may arrive first."""
        if made.driver.version or body["messages"][0]["content"].startswith("step 0:"):
            return f"version {made.driver.version}"
        held.append(body)
        if len(held) == SIZE:
            asked.set()
        await give_up.wait()
        return how

    async def update(step: int) -> None:
        """As verl's servers are updated."""
        if step:
            return
        await asyncio.wait_for(asked.wait(), 300)
        await jobs[0].hold()
        give_up.set()
        assert await made.context.gateway.drain(20)
        assert made.context.gateway.metrics.aborted["calls"] == SIZE
        await jobs[0].release()

    async with ScriptedModelServer(reply) as server:
        made = line(server, tmp_path, 1, steps=2)
        made.driver.update = update
        jobs: list[Any] = []
        run = made.driver.run

        async def run_and_keep(job: Any) -> None:
            jobs.append(job)
            await run(job)

        made.driver.run = run_and_keep  # type: ignore[method-assign]
        result = await made.fit(Play(made), TASKS)
    tokens = {"tokens": SIZE * len(answer_of(how).ids)} if how.finish_reason else {}
    assert result["accounts"]["given-up"] == {"calls": SIZE, **tokens}
    assert ages(made) == [{0}, {0}], "none is stale: each was asked again of the new version"
    calls = [call for record in made.records for call in record.calls]
    assert len(calls) == 2 * SIZE and {call.status for call in calls} == {"ok"}
    assert sorted(call.response["content"] for call in calls if call.response) == [
        *["version 0"] * SIZE, *["version 1"] * SIZE
    ]  # fmt: skip
    assert len(server.log) == 3 * SIZE
    assert not made.out()
