"""``agl runner``: processes that lease from a store anywhere, and end as they are told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from agl_testing import ScriptedModelServer
from contract.running import finish, reason
from marks import sampled
from typer.testing import CliRunner

from agentlightning import cli
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import CONTEXT_KEY, Keys
from agentlightning.plugins.manager import load
from agentlightning.types import LLM, RolloutConfig, RolloutStatus, UsageError
from agl_cluster.commands.runner import RunnerOptions, _open
from agl_cluster.store import server
from agl_cluster.store.client import StoreClient
from plugins.cluster.tests.runners.test_workers import alive

HERE = Path(__file__).parent
SECRET = "a secret of sixteen bytes or more"
WAIT = 300


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[server.Served]:
    opened = await server.start(tmp_path / "s.sqlite", "127.0.0.1", 0)
    yield opened
    await opened.close()


class Process:
    """An ``agl runner`` and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""
        self._reading = asyncio.create_task(self._read())
        self._more = asyncio.Event()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.said += line.decode()
            self._more.set()
        self._more.set()

    async def says(self, text: str) -> None:
        async with asyncio.timeout(WAIT):
            while text not in self.said:
                assert not self._reading.done(), f"it ended after saying {self.said!r}"
                self._more.clear()
                await self._more.wait()

    async def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), WAIT)
        await self._reading
        return code


@asynccontextmanager
async def runner(
    *arguments: str, agent: str = "solve", pass_fds: tuple[int, ...] = (), **environment: str
) -> AsyncIterator[Process]:
    command = ["-c", "from _agl_main import main; main()", "runner"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--agent",
        f"agents_for_runner:{agent}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=HERE,
        env={**os.environ, **environment},
        pass_fds=pass_fds,
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
async def test_sigterm_ends_it_with_status_0(served: server.Served) -> None:
    async with runner("--store", served.url) as process:
        done = await finish(served.store, [0.25, 0.5])
        assert {r.status for r in done} == {RolloutStatus.SUCCEEDED}
        assert await process.end(signal.SIGTERM) == 0
    assert "0 running · 2 succeeded" in process.said


@pytest.mark.parametrize("workers", sampled([1, 2], 0))
async def test_sigterm_ends_it_although_an_agent_left_a_thread_behind(
    served: server.Served, workers: int
) -> None:
    async with runner("--store", served.url, "--workers", str(workers), agent="leaves_a_thread") as process:
        [done] = await finish(served.store, [0.25])
        assert done.status == RolloutStatus.SUCCEEDED
        assert await process.end(signal.SIGTERM) == 0
    assert "ended without threads that agents left behind: left-behind, pooled_0" in process.said


@pytest.mark.slow
async def test_the_first_ctrl_c_ends_it_although_an_agent_blocks_its_loop(served: server.Served) -> None:
    async with runner("--store", served.url, "--drain", "0", agent="blocks") as process:
        rollout = await served.store.enqueue_rollout("never")
        await process.says("waiting")
        assert await process.end(signal.SIGINT) == 130
    assert await reason(served.store, rollout) == "cancelled: the attempt was stopped from outside"


@pytest.mark.slow
async def test_a_runner_for_one_rollout_ends_with_it(served: server.Served) -> None:
    first, second = [await served.store.enqueue_rollout(task) for task in (0.25, 0.5)]
    named = ("--store", served.url, "--rollout", second.rollout_id, "--worker-id", "job-1")
    async with runner(*named) as process:
        assert await process.end() == 0
    assert "1 succeeded" in process.said
    attempt = await served.store.get_latest_attempt(second.rollout_id)
    assert attempt is not None and attempt.worker_id == "job-1"
    assert (await served.store.get_rollout_by_id(first.rollout_id)).status == RolloutStatus.QUEUING


def test_one_rollout_is_for_one_runner() -> None:
    line = ["runner", "--store", "http://127.0.0.1:1", "--rollout", "ro-1", "--workers", "2"]
    refused = CliRunner().invoke(cli.app(), line)
    assert isinstance(refused.exception, UsageError) and "leave --workers out" in str(refused.exception)


@pytest.mark.slow
async def test_only_the_run_that_was_asked_for(served: server.Served) -> None:
    other = await served.store.enqueue_rollout(1, run_id="theirs")
    async with runner("--store", served.url, "--run", "ours"):
        await finish(served.store, [1], run_id="ours")
    assert (await served.store.get_rollout_by_id(other.rollout_id)).status == RolloutStatus.QUEUING


@pytest.mark.slow
@pytest.mark.parametrize("isolation", sampled(["inline", "process"], 0))
async def test_what_runs_may_end_and_then_is_stopped_and_settled(
    served: server.Served, tmp_path: Path, isolation: str
) -> None:
    file = tmp_path / "go"
    store = served.store
    arguments = ("--store", served.url, "--isolation", isolation)
    async with runner(*arguments, agent="wait_for_file") as process:
        rollout = await store.enqueue_rollout(str(file))
        await process.says("waiting")
        process.process.send_signal(signal.SIGTERM)
        file.touch()
        assert await process.end() == 0
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == RolloutStatus.SUCCEEDED
    async with runner(*arguments, "--drain", "0", agent="wait_for_file") as process:
        rollout = await store.enqueue_rollout("never")
        await process.says("waiting")
        assert await process.end(signal.SIGTERM) == 0
    assert await reason(store, rollout) == "cancelled: the attempt was stopped from outside"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143)], 0))
async def test_the_second_signal_ends_it_at_once(
    served: server.Served, number: signal.Signals, code: int
) -> None:
    async with runner("--store", served.url) as process:
        rollout = await served.store.enqueue_rollout("hang")
        await process.says("hanging")
        process.process.send_signal(number)
        await asyncio.sleep(0.1)  # two signals at one moment are one
        assert await process.end(number) == code
    assert (await reason(served.store, rollout)).startswith("cancelled")


@pytest.mark.slow
async def test_the_store_may_come_later_and_the_gateway_later_still(tmp_path: Path) -> None:
    """Any order: runner, store, gateway. Keys of one secret open the gateway, and calls are recorded."""
    first = await server.start(tmp_path / "s.sqlite", "127.0.0.1", 0)
    url, port = first.url, int(first.url.rsplit(":", 1)[1])
    await first.close()
    async with runner("--store", url, agent="ask", AGL_SECRET=SECRET) as process:
        await process.says("no store answers")
        served = await server.start(tmp_path / "s.sqlite", "127.0.0.1", port)
        gateway = Gateway(served.store, Keys(SECRET.encode()))
        async with ScriptedModelServer() as engine:
            gateway.add_route(Upstream(policy="policy", url=engine.url, model=engine.model))
            await gateway.start()
            for _ in range(2):  # a gateway that was started again is found at its new address
                llm = LLM(endpoint=gateway.url, model="policy", api_key=CONTEXT_KEY)
                resources = await served.store.add_resources({"llm": llm})
                [done] = await finish(served.store, ["hi"], resources_id=resources.resources_id)
                [record] = await served.store.records([done.rollout_id])
                assert [r.value for r in record.rewards] == [1.0] and len(record.calls) == 1
                assert record.calls[0].has_ids and len(record.wire) == 1
                await gateway.stop()
                await gateway.start()
            assert await process.end(signal.SIGTERM) == 0
        await gateway.stop()
        await served.close()
    assert process.said.count("no store answers") == 1


@pytest.mark.slow
async def test_a_gateway_without_the_secret_is_a_clear_error(served: server.Served) -> None:
    llm = LLM(endpoint="http://127.0.0.1:9/v1", model="policy", api_key=CONTEXT_KEY)
    await served.store.add_resources({"llm": llm})
    rollout = await served.store.enqueue_rollout("hi")
    async with runner("--store", served.url, agent="ask") as process:
        assert await process.end() == 2
    assert "agl: resource 'llm' points at the gateway http://127.0.0.1:9/v1" in process.said
    assert "set AGL_SECRET" in process.said and "Traceback" not in process.said
    assert (await reason(served.store, rollout)).startswith("cancelled: resource 'llm'")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--agent", "agents_for_runner:nobody"], {}, "--agent: module 'agents_for_runner' has no 'nobody'"),
        (["--isolation", "thread"], {}, "isolation: Input should be 'inline' or 'process'"),
        ([], {"AGL_SECRET": "short"}, "AGL_SECRET: the key secret has 5 bytes"),
        (["--adapter", "none"], {}, "no adapter is called 'none'"),
        (["--patience", "0.1"], {}, "no store answers at http://127.0.0.1:9"),
        (["--config", "none.yaml"], {}, "none.yaml: there is no such file"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str], environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(HERE))
    command = ["runner", "--agent", "agents_for_runner:solve", "--store", "http://127.0.0.1:9", *arguments]
    result = CliRunner().invoke(cli.app(), command)
    assert isinstance(result.exception, UsageError) and message in str(result.exception)


@pytest.mark.slow
async def test_workers_that_die_are_replaced_and_end_together(served: server.Served) -> None:
    store = served.store
    config = RolloutConfig(unresponsive_seconds=0.4, max_attempts=1)
    async with runner("--store", served.url, "--workers", "2", "--concurrency", "1") as process:
        [dead] = await finish(store, ["die"], config=config)
        assert "no sign of life" in await reason(store, dead)
        done = await finish(store, [1, 1, 1, 1])
        assert {r.status for r in done} == {RolloutStatus.SUCCEEDED}
        await process.says("starting it again")
        assert await process.end(signal.SIGTERM) == 0
    assert "died with signal 9 (SIGKILL); starting it again in 0.5 s" in process.said
    assert "2 workers" in process.said and "1 restarted" in process.said


@pytest.mark.slow
async def test_what_a_killed_worker_ran_is_run_by_another(served: server.Served, tmp_path: Path) -> None:
    """Without being asked for: of the configuration only the silence is shorter than it is by default."""
    task = {"marker": str(tmp_path / "killed"), "reward": 0.5}
    async with runner("--store", served.url, "--workers", "2", "--concurrency", "1") as process:
        [done] = await finish(served.store, [task], config=RolloutConfig(unresponsive_seconds=1.0))
        assert await process.end(signal.SIGTERM) == 0
    assert (done.status, done.attempts) == (RolloutStatus.SUCCEEDED, 2)
    first, second = await served.store.query_attempts(done.rollout_id)
    assert (first.status, second.status) == ("unresponsive", "succeeded")
    assert Path(task["marker"]).exists()


@pytest.mark.slow
async def test_workers_share_a_mistake(served: server.Served) -> None:
    async with runner("--store", served.url, "--workers", "2", agent="nobody") as process:
        assert await process.end() == 2
    assert "has no 'nobody'" in process.said and "starting it again" not in process.said


@pytest.mark.slow
async def test_workers_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    async with runner("--store", str(path), "--workers", "2") as process:
        assert await process.end() == 2
    assert f"cannot share {path}" in process.said and f"`agl store {path}`" in process.said
    assert not path.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel kills children of the dead on Linux")
async def test_workers_die_with_their_supervisor(served: server.Served) -> None:
    async with runner("--store", served.url, "--workers", "2") as process:
        await finish(served.store, [1])
        children = psutil.Process(process.process.pid).children()
        workers = [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
        assert len(workers) == 2
        process.process.kill()
        await process.end()  # its output ends when nobody holds it any more
    for pid in workers:
        assert not await alive(pid)


@pytest.mark.slow
async def test_a_store_that_is_killed_and_comes_back_costs_nothing(tmp_path: Path) -> None:
    """The store's server dies while attempts run, and is started again: their ends are written after all."""
    file, path = tmp_path / "go", tmp_path / "s.sqlite"
    probe = await server.start(path, "127.0.0.1", 0)
    url, port = probe.url, probe.url.rsplit(":", 1)[1]
    await probe.close()

    async def serve() -> asyncio.subprocess.Process:
        command = ["-c", "from _agl_main import main; main()", "store", str(path), "--port", port]
        store = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        assert store.stdout is not None and await asyncio.wait_for(store.stdout.readline(), WAIT)
        return store

    store = await serve()
    client = StoreClient(url)
    config = RolloutConfig(unresponsive_seconds=60)
    try:
        async with runner("--store", url, agent="wait_for_file") as process:
            rollouts = [await client.enqueue_rollout(str(file), config=config) for _ in range(3)]
            while process.said.count("waiting") < 3:
                await asyncio.sleep(0.02)
            store.kill()
            await store.wait()
            file.touch()
            await process.says("no store answers")
            store = await serve()
            done = await client.wait_for_rollouts([r.rollout_id for r in rollouts], timeout=WAIT)
            assert [r.status for r in done] == [RolloutStatus.SUCCEEDED] * 3
            records = await client.records([r.rollout_id for r in rollouts])
            assert [[reward.value for reward in r.rewards] for r in records] == [[1.0]] * 3
            assert await process.end(signal.SIGTERM) == 0
    finally:
        await client.close()
        store.terminate()
        await store.wait()


@pytest.mark.slow
async def test_what_its_file_says_of_the_agent_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    file = tmp_path / "run.yaml"
    about = "{target: 'agents_for_runner:solve', isolation: process, concurrency: 3, timeout_seconds: 7}"
    file.write_text(f"agent: {about}\nbackend: {{policy: p}}\nstore: ':memory:'\n")
    for given, isolation in ((None, "process"), ("inline", "inline")):
        store, runner = _open(RunnerOptions(config=file, isolation=given), load())
        await store.close()
        agent = runner.settings
        assert (agent.isolation, agent.concurrency, agent.timeout_seconds) == (isolation, 3, 7.0)
