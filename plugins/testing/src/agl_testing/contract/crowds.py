"""Contract: concurrent agents, on one event loop, in threads and in processes, have their own attempts."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from agentlightning import semconv
from agentlightning.keys import CONTEXT_KEY
from agentlightning.types import Span
from agl_testing import ScriptedModelServer
from agl_testing.contract.features import STREAM, feature
from agl_testing.contract.hooks import AdapterHooks, add
from agl_testing.contract.recording import Recording, assert_each_exact, assert_exact
from agl_testing.contract.script import SOLVER, TEAM
from agl_testing.contract.tally import CountedServer

WORKER = "agl_testing.contract.worker"


async def busy(adapter: AdapterHooks, client: Any, recordings: Sequence[Recording], stream: bool) -> None:
    """Run all attempts concurrently. Even attempts are tool agents, odd ones are teams."""

    async def work(recording: Recording) -> None:
        name = recording.context.attempt_id
        with recording.active():
            if int(name[3:]) % 2:
                await adapter.team(client, f"poem {name}", stream)
            else:
                await adapter.tool_agent(client, f"task {name}", add, stream)

    await asyncio.gather(*(work(recording) for recording in recordings))


def assert_apart(recordings: Sequence[Recording], server: ScriptedModelServer) -> None:
    """Assert that each attempt has its own calls: exact, in order, under its own key, by the right agents."""
    for recording in recordings:
        name = recording.context.attempt_id
        mine = [x for x in server.log if x.headers[semconv.HEADER_ATTEMPT] == name]
        assert len(mine) == 2
        assert_exact(recording, mine)
        assert recording.agents() == (list(TEAM) if int(name[3:]) % 2 else [SOLVER, SOLVER])
        assert {x.headers["authorization"] for x in mine} == {f"Bearer {recording.context.key}"}
        assert all(name in str(x.body["messages"]) for x in mine)
    assert len(server.log) == 2 * len(recordings)


class CrowdsContract(AdapterHooks):
    """Tests of concurrent agents."""

    @STREAM
    @feature("concurrency")
    async def test_sixteen_agents_at_once(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recordings = [Recording(str(number), server.url) for number in range(16)]
        await busy(self, shared, recordings, stream)
        assert_apart(recordings, server)

    @feature("concurrency")
    async def test_sixteen_agents_over_four_processes(self, server: ScriptedModelServer) -> None:
        file, name = inspect.getfile(type(self)), type(self).__name__
        workers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", WORKER, file, name, server.url, str(first)),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            for first in range(0, 16, 4)
        ]
        recordings = []
        for worker in workers:
            out, errors = await worker.communicate()
            assert worker.returncode == 0, errors.decode()[-4000:]
            for number, spans in msgspec.json.decode(out.splitlines()[-1], type=list[tuple[int, list[Span]]]):
                recording = Recording(str(number), server.url)
                recording.spans.extend(spans)
                recordings.append(recording)
        assert len(recordings) == 16
        assert_apart(recordings, server)

    @feature("concurrency")
    def test_eight_threads_with_loops_of_their_own(self) -> None:
        async def work(task: str, stream: bool) -> None:
            client = self.client(server.url, CONTEXT_KEY)
            await self.tool_agent(client, task, add, stream)
            await self.close(client)

        with CountedServer(self.say, ids="always") as server, ThreadPoolExecutor(8) as pool:
            recordings = [Recording(str(number), server.url) for number in range(0, 16, 2)]
            jobs = []
            for number, recording in enumerate(recordings):
                with recording.active():
                    task = f"task {recording.context.attempt_id}"
                    jobs.append(pool.submit(asyncio.run, work(task, bool(number % 2))))
            for job in jobs:
                job.result(60)
        assert_apart(recordings, server)

    @STREAM
    @feature("concurrency")
    async def test_identical_prompts_at_once_are_calls_of_their_own(
        self, server: ScriptedModelServer, shared: Any, stream: bool
    ) -> None:
        recording = Recording("same", server.url)
        with recording.active():
            await asyncio.gather(*(self.tool_agent(shared, "the same", add, stream) for _ in range(8)))
        assert len(server.log) == 16
        assert recording.agents() == [SOLVER] * 16
        assert_each_exact(recording, server.log)
        tools = [s for s in recording.spans if s.attributes.get(semconv.OPERATION_NAME) == "execute_tool"]
        assert len({span.span_id for span in tools}) == 8
