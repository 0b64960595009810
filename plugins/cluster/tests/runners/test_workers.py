"""Worker processes: an agent that harms its process ends its own attempt, and the run goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from agl_testing import ScriptedModelServer
from contract.running import finish, reason, serving
from core.plugins.test_adaptations import Doubling, called_twice
from core.runner.test_leases import counts_of_a_lost_lease
from core.runner.test_rewards import emits_and_returns
from core.runner.test_runner import FakeGateway
from core.runner.test_tracebacks import kept
from marks import sampled

from agentlightning.credit.rewards import resolve
from agentlightning.credit.verdicts import verdicts
from agentlightning.decorator.agents import RunnableAgent
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.plugins.manager import build
from agentlightning.runner.agent import hosted
from agentlightning.runner.outcome import CannotRun
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import LLM, RolloutConfig, RolloutStatus
from agl_cluster import plugin
from agl_cluster.runners.workers import WorkerHandle, WorkerPool
from plugins.cluster.tests.runners import agents_for_workers as agents

ROOT = Path(__file__).parents[4]
LIMIT = RolloutConfig(timeout_seconds=0.8)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


async def rewards(store: Store, rollout_id: str) -> list[float]:
    [record] = await store.records([rollout_id])
    return [r.value for r in record.rewards]


async def test_attempts_run_in_few_warm_processes(store: Store) -> None:
    async with serving(agents.misbehave, store, concurrency=2, isolation="process") as runner:
        done = await finish(store, ["pid"] * 6 + [0.25])
    values = [(await rewards(store, r.rollout_id))[0] for r in done]
    assert len(set(values[:6])) <= 2 and float(os.getpid()) not in values
    assert values[6] == 0.25 and runner.counts == {"succeeded": 7}


@pytest.mark.slow
@pytest.mark.parametrize("vice", sampled(["hold the gil", "swallow", "spin"], 0))
async def test_what_cannot_be_cancelled_is_killed_and_the_run_goes_on(store: Store, vice: str) -> None:
    async with serving(agents.misbehave, store, concurrency=1, isolation="process") as runner:
        [bad] = await finish(store, [vice], config=LIMIT)
        [good] = await finish(store, [1])
    assert await reason(store, bad) == "timeout: the attempt took longer than 0.8 s"
    assert await rewards(store, bad.rollout_id) == [0.5]  # what had arrived is kept
    assert good.status == RolloutStatus.SUCCEEDED
    assert runner.counts == {"timeout": 1, "killed": 1, "succeeded": 1}


@pytest.mark.slow
async def test_a_sync_agent_is_killed_too(store: Store) -> None:
    async with serving(agents.sync_hang, store, concurrency=1, isolation="process") as runner:
        await finish(store, ["hang"], config=LIMIT)
        await finish(store, [1])
    assert runner.counts == {"timeout": 1, "killed": 1, "succeeded": 1}


@pytest.mark.slow
async def test_a_process_that_dies_fails_its_attempt(store: Store) -> None:
    deaths = {
        "segfault": "agent-raised: the worker process died with signal 11 (SIGSEGV)",
        "exit hard": "agent-raised: the worker process exited with status 7",
    }
    async with serving(agents.misbehave, store, concurrency=1, isolation="process") as runner:
        *bad, good = await finish(store, [*deaths, 1])
    for rollout, why in zip(bad, deaths.values(), strict=True):
        assert await reason(store, rollout) == why
        assert await rewards(store, rollout.rollout_id) == [0.5]
    assert good.status == RolloutStatus.SUCCEEDED and runner.counts["died"] == 2


@pytest.mark.slow
async def test_what_is_raised_ends_the_attempt_only(store: Store) -> None:
    """One process runs all attempts."""
    raised = {
        "exit": "agent-raised: SystemExit: 3",
        "interrupt": "agent-raised: KeyboardInterrupt: no message",
        "surrogates": "agent-raised: RuntimeError: half a character: ",
    }
    tasks = [task for vice in raised for task in (vice, 1)]
    async with serving(agents.misbehave, store, concurrency=1, isolation="process") as runner:
        done = await finish(store, tasks)
    for bad, good, why in zip(done[::2], done[1::2], raised.values(), strict=True):
        assert (await reason(store, bad)).startswith(why)
        assert good.status == RolloutStatus.SUCCEEDED
    assert not runner.counts["died"]


@pytest.mark.slow
async def test_what_does_no_harm(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process runs all attempts, each followed by an honest one."""
    monkeypatch.setenv("AGL_SECRET", "x" * 32)
    tasks = [task for vice in ("read stdin", "noise", "threads", "fork", "environment") for task in (vice, 1)]
    async with serving(agents.misbehave, store, concurrency=1, isolation="process") as runner:
        done = await finish(store, tasks)
    for rollout in done:
        assert await rewards(store, rollout.rollout_id) == [1.0], rollout.input
    assert runner.counts == {"succeeded": len(tasks)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by the kernel's subreaper")
async def test_what_the_agent_started_is_killed_with_it(store: Store) -> None:
    for limit in (2.5, 25.0, 250.0):  # on a busy machine three processes may take longer than the first
        async with serving(agents.misbehave, store, concurrency=1, isolation="process"):
            [rollout] = await finish(store, ["fork and hang"], config=RolloutConfig(timeout_seconds=limit))
        [record] = await store.records([rollout.rollout_id])
        started = [int(r.value) for r in record.rewards if r.name == "child"]
        if len(started) == 3:
            break
    assert len(started) == 3  # in its group, in another session, and an orphan that it adopted
    for pid in started:
        assert not await alive(pid)


@pytest.mark.slow
async def test_a_storm_of_forks_is_killed_to_the_last(store: Store) -> None:
    async with serving(agents.misbehave, store, concurrency=1, isolation="process"):
        [rollout] = await finish(store, ["storm"], config=LIMIT)
    [worker] = await rewards(store, rollout.rollout_id)
    for _ in range(100):
        left = [one for one in psutil.process_iter() if group_of(one) == worker]
        if not left:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"left behind: {left}")


@pytest.mark.slow
async def test_calls_from_a_worker_are_captured_exactly(store: Store) -> None:
    gateway = Gateway(store, Keys())
    async with ScriptedModelServer() as engine:
        gateway.add_route(Upstream(policy="policy", url=engine.url, model=engine.model))
        await gateway.start()
        resources = await store.add_resources({"llm": LLM(endpoint=gateway.url, model="policy")})
        async with serving(agents.ask, store, concurrency=1, isolation="process", attempt_keys=gateway):
            [rollout] = await finish(store, ["hi"], resources_id=resources.resources_id)
        await gateway.stop()
    [record] = await store.records([rollout.rollout_id])
    [call] = record.calls
    assert verdicts(record)[call.call_id].kind == "exact"
    assert resolve(record).calls == {call.call_id: 0.25} and resolve(record).final == 1.0


async def alive(pid: int) -> bool:
    """Return whether a process runs and is no zombie, after a moment for a process that was just killed."""
    for _ in range(100):
        if not runs(pid):
            return False
        await asyncio.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def group_of(process: psutil.Process) -> int | None:
    """Return the process group of a running process."""
    try:
        return os.getpgid(process.pid) if runs(process.pid) else None
    except ProcessLookupError:
        return None


@pytest.mark.slow
async def test_state_decorators_keys_and_counts_travel(store: Store) -> None:
    gate = FakeGateway()
    resources = await store.add_resources({"llm": LLM(endpoint=gate.url, model="policy")})
    for agent, task, value in [
        (agents.Configured(3.0), 2.0, 6.0),
        (agents.decorated, 0.5, 0.5),
        (agents.key_of, 0, float(len("key-of-at-") + 16)),
    ]:
        async with serving(agent, store, concurrency=1, isolation="process", attempt_keys=gate):
            [rollout] = await finish(store, [task], resources_id=resources.resources_id)
        [found] = await rewards(store, rollout.rollout_id)
        assert found == value or agent is agents.key_of
    assert len(gate.closed) == 3


@pytest.mark.slow
async def test_the_returned_reward_counts(store: Store) -> None:
    async with serving(emits_and_returns, store, concurrency=1, isolation="process"):
        [rollout] = await finish(store, [1])
    [record] = await store.records([rollout.rollout_id])
    assert resolve(record).final == 1.0
    assert [(r.value, r.returned) for r in record.rewards] == [(0.3, False), (1.0, True)]
    assert (await store.counts())["refused"] == {"reward-beside-the-returned": 1}


@pytest.mark.slow
async def test_a_traceback_comes_back_too(store: Store) -> None:
    text = await kept(store, agents.misbehave, "raise", concurrency=1, isolation="process")
    assert text is not None and text.splitlines()[0].startswith(agents.__file__)


@pytest.mark.slow
async def test_a_lost_lease_kills_the_agent(store: Store) -> None:
    assert (await counts_of_a_lost_lease(store, agents.misbehave, isolation="process"))["killed"] == 1


@pytest.mark.slow
async def test_a_plugin_calls_an_agent_in_its_own_way_there() -> None:
    await called_twice("process", build([Doubling(), plugin], discover=False))


class Locked(RunnableAgent):
    """Holds an object that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.slow
async def test_whatever_the_store_can_hold_can_be_sent(store: Store) -> None:
    """Integers beyond 64 bits and halves of characters, which MessagePack lacks, and plain values."""
    tasks = [{"n": 1 << 80}, {"n": "\ud800"}, {"n": [None, 1.5, "ä", True]}]
    async with serving(agents.echo, store, concurrency=1, isolation="process") as runner:
        done = await finish(store, tasks)
    assert runner.counts == {"succeeded": 3}
    for rollout in done:
        [told] = [s for s in await store.query_spans(rollout.rollout_id) if "task" in s.attributes]
        assert told.attributes["task"] == rollout.input["n"]


@pytest.mark.slow
async def test_a_worker_that_dies_after_its_work_leaves_nothing_open(store: Store) -> None:
    pool = WorkerPool(hosted(agents.misbehave), RunnerSection(concurrency=1), Counter())
    async with pool.worker():
        [worker] = pool._busy
        os.kill(worker._system.pid, signal.SIGKILL)
        assert await worker.died == "died with signal 9 (SIGKILL)"
    assert worker._connection.closed and not worker.usable
    await pool.close()


@pytest.mark.slow
async def test_one_that_is_stopped_twice_gives_its_place_back_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing, close = asyncio.Event(), WorkerHandle.close

    async def slowly(child: WorkerHandle) -> None:
        killing.set()
        await asyncio.sleep(0.05)
        await close(child)

    monkeypatch.setattr(WorkerHandle, "close", slowly)
    async with serving(agents.misbehave, store, concurrency=1, isolation="process") as runner:
        await store.enqueue_rollout("swallow", config=RolloutConfig(max_attempts=1))
        assert isinstance(runner._pool, WorkerPool)
        while not (runner._agents and runner._pool._busy):
            await asyncio.sleep(0.01)
        [attempt_id] = runner._agents
        runner.stop(attempt_id)
        await killing.wait()
        runner.stop(attempt_id)
        [good] = await finish(store, [1])
    assert good.status == RolloutStatus.SUCCEEDED


async def test_an_agent_that_cannot_be_sent_is_refused_with_the_way_out(store: Store) -> None:
    async def local(task: Any) -> float:
        return 1.0

    for agent in (local, lambda task: 1.0, Locked()):
        with pytest.raises(CannotRun, match=r"top level of a module.*isolation='inline'"):
            Runner(agent, store, RunnerSection(isolation="process"))


class Unloadable(RunnableAgent):
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return (_refuse, ())


def _refuse() -> None:
    raise RuntimeError("no licence on this machine")


@pytest.mark.slow
async def test_an_agent_that_cannot_be_loaded_ends_serving_before_a_lease(store: Store) -> None:
    await store.enqueue_rollout(1)
    with pytest.raises(CannotRun, match=r"could not load the agent: RuntimeError: no licence.*test_workers"):
        await Runner(Unloadable(), store, RunnerSection(isolation="process")).serve()
    [waiting] = await store.query_rollouts()
    assert waiting.status == RolloutStatus.QUEUING


@pytest.mark.slow
async def test_a_step_needs_no_serving(store: Store) -> None:
    runner = Runner(agents.misbehave, store, RunnerSection(isolation="process", concurrency=1))
    try:
        for task in (0.5, 1):
            rollout = await runner.step(task)
            assert await rewards(store, rollout.rollout_id) == [float(task)]
    finally:
        await runner.close()


@pytest.mark.slow
async def test_stopping_kills_and_settles_what_hangs(store: Store) -> None:
    rollout = await store.enqueue_rollout("hold the gil")
    async with serving(agents.misbehave, store, isolation="process", concurrency=1, drain=0.0) as runner:
        while not runner.running:
            await asyncio.sleep(0.01)
    assert await reason(store, rollout) == "cancelled: the attempt was stopped from outside"
    assert runner.running == 0


SCRIPT = """
import asyncio, sys
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore
from agentlightning import emit_reward

async def agent(task):
    import os
    print(os.getpid(), flush=True)
    await asyncio.Event().wait()

async def main():
    store = SQLiteStore(":memory:")
    await store.enqueue_rollout(1)
    await Runner(agent, store, RunnerSection(isolation="process", concurrency=1)).serve()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.slow
async def test_workers_of_a_script_die_with_it(tmp_path: Path) -> None:
    """The agent comes from the main script, by its path; the script is killed with SIGKILL."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    worker = int(await asyncio.wait_for(process.stdout.readline(), 300))
    assert worker != process.pid
    process.kill()
    await process.wait()
    assert not await alive(worker)


@pytest.mark.slow
async def test_an_agent_of_a_prompt_is_refused() -> None:
    code = SCRIPT.replace('if __name__ == "__main__":', "if True:")
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=300
    )
    assert "defined in __main__ without a file" in done.stderr


UNGUARDED = """
import asyncio
from plugins.cluster.tests.runners import agents_for_workers as agents
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore

async def main():
    settings = RunnerSection(isolation="process", concurrency=1)
    runner = Runner(agents.misbehave, SQLiteStore(":memory:"), settings)
    print((await runner.step(0.5)).status.value)

asyncio.run(main())
"""


def run_script(path: Path, text: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.slow
async def test_a_script_that_workers_cannot_import_is_told_so(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run_script, tmp_path / "script.py", UNGUARDED)
    assert done.returncode == 1
    assert 'put what it does under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


@pytest.mark.slow
async def test_a_runner_that_nobody_closes_does_not_keep_its_process(tmp_path: Path) -> None:
    guarded = UNGUARDED.replace("asyncio.run", 'if __name__ == "__main__":\n    asyncio.run')
    done = await asyncio.to_thread(run_script, tmp_path / "script.py", guarded)
    assert (done.returncode, done.stdout) == (0, "succeeded\n"), done.stderr


ENVIRONMENTS = """
import asyncio, os, sys
from pathlib import Path
from agentlightning.child_environment import engine_key, store_password
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.store import SQLiteStore

def readable(path):
    try:
        return Path(path).read_bytes()
    except OSError as error:
        return type(error).__name__.encode()

async def agent(task):
    assert os.environ["MINE"] == "kept" and os.environ["JUDGE_KEY"] == "agl-context"
    seen = [readable(path) for path in Path("/proc").glob("[0-9]*/environ")]
    seen.append(str(dict(os.environ)).encode())
    words = [b"word-of-the-" + of for of in (b"secret", b"token", b"store", b"proxy", b"judge", b"base")]
    found = [word.decode() for text in seen for word in words if word in text]
    places = [f"/proc/{os.getppid()}/{file}" for file in ("mem", "environ")]
    runner = [readable(place)[:20].decode(errors="replace") for place in places]
    print(found, *runner, flush=True)
    return 0.0

async def main():
    assert engine_key("JUDGE_KEY") == "word-of-the-judge"
    assert store_password("PGPASSWORD") == "word-of-the-base"
    runner = Runner(agent, SQLiteStore(":memory:"), RunnerSection(isolation="process", concurrency=1))
    print((await runner.step(0.5)).status.value, flush=True)
    await runner.close()
    assert os.environ["AGL_SECRET"] == "word-of-the-secret"  # our own code finds it

if __name__ == "__main__":
    asyncio.run(main())
"""

SECRETS = {
    "AGL_SECRET": "word-of-the-secret",
    "AGL_TOKEN": "word-of-the-token",
    "AGL_STORAGE": "postgresql://agl:word-of-the-store@127.0.0.1/agl",
    "HTTPS_PROXY": "http://me:word-of-the-proxy@127.0.0.1:9",
    "JUDGE_KEY": "word-of-the-judge",
    "PGPASSWORD": "word-of-the-base",
    "MINE": "kept",
}


WITHOUT_RIGHTS = """
import ctypes, os, sys
for capability in range(41):
    if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
        sys.exit("this process may not drop a capability")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Runs a script without the rights that root has beyond those of a user."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("all_rights", [True, False])
async def test_no_process_shows_a_secret_of_the_run(tmp_path: Path, all_rights: bool) -> None:
    """The agent reads its own environment and that of every process which it may read; without root's rights
    it can read neither its parent's memory nor its environment."""
    script = tmp_path / "script.py"
    own = f"word-{os.getpid()}-of-the"  # root reads the processes of another worker's test too
    script.write_text(ENVIRONMENTS.replace("word-of-the", own), encoding="utf-8")
    given = {name: value.replace("word-of-the", own) for name, value in SECRETS.items()}
    drops = os.geteuid() == 0 and not all_rights
    command = [sys.executable, *(["-c", WITHOUT_RIGHTS] if drops else []), str(script)]
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **given}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    said, errors = await process.communicate()
    found, ended = said.decode().splitlines() or ["", ""]
    assert (found[:2], ended) == ("[]", "succeeded"), said.decode() + errors.decode()
    if os.geteuid() != 0 or drops:
        assert found == "[] PermissionError PermissionError"
