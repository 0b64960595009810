"""Capture of a program that does not import Agent Lightning: calls, agents, rewards, exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agl_programs.run_view import show
from agl_programs.summary import UNNAMED, Summary
from agl_testing import Reply, ScriptedModelServer
from rich.console import Console

from agentlightning.hookspecs import hookimpl
from agentlightning.plugins import load
from agentlightning.types import AttemptStatus, Reward
from plugins.programs.tests.running import CALL, run, run_command, written


def shown(summary: Summary) -> str:
    """The summary as it is printed."""
    out = io.StringIO()
    show(summary, Console(width=200, file=out))
    return out.getvalue()


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer() as one:
        yield one


async def test_every_call_of_a_plain_program_is_exact(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = (
        CALL
        + """
import asyncio, openai
ask("sync")

async def main():
    client = openai.AsyncOpenAI()
    ask = lambda text, **kw: client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": text}], **kw)
    await asyncio.gather(*(ask(f"together {i}") for i in range(4)))
    async for _ in await ask("stream", stream=True): pass
    await ask("several", n=3)

asyncio.run(main())
"""
    )
    outcome = await run(tmp_path, source, server)
    assert outcome.kinds == ["exact"] * 9  # n=3 makes three
    assert len(server.log) == 7 and outcome.summary.verdicts == {"exact": 9}
    assert [attempt.status for attempt in outcome.attempts] == [AttemptStatus.SUCCEEDED]
    assert outcome.summary.agents == {UNNAMED: 9} and outcome.summary.exit_codes == [0]
    ids = [answer.ids for exchange in server.log for answer in exchange.answers]
    assert sorted(ids) == sorted(call.response_ids or [] for call in outcome.records[0].calls)


@pytest.mark.slow
async def test_threads_pools_forks_and_subprocesses_are_the_same_attempt(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    written(tmp_path, CALL + "ask('subprocess')\n", "other.py")
    source = (
        CALL
        + """
import multiprocessing, os, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor

if __name__ == "__main__":
    thread = threading.Thread(target=ask, args=("thread",)); thread.start(); thread.join()
    with ThreadPoolExecutor(2) as pool: list(pool.map(ask, ["pool 1", "pool 2"]))
    for method in ("fork", "spawn"):
        other = multiprocessing.get_context(method).Process(target=ask, args=(method,))
        other.start(); other.join(); assert other.exitcode == 0
    if not (pid := os.fork()):
        ask("os.fork"); os._exit(0)
    os.waitpid(pid, 0)
    subprocess.run([sys.executable, "-m", "other"], check=True, cwd=os.path.dirname(__file__))
"""
    )
    outcome = await run(tmp_path, source, server)
    assert outcome.summary.exit_codes == [0]
    asked = ["thread", "pool 1", "pool 2", "fork", "spawn", "os.fork", "subprocess"]
    assert sorted(outcome.asked) == sorted(asked)
    assert outcome.kinds == ["exact"] * 7
    assert outcome.summary.processes == 5 and outcome.summary.counts == {}


@pytest.mark.slow
async def test_rewards_tags_and_task(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = (
        CALL
        + """
import agentlightning as agl
ask(str(agl.current_task()["x"]))
with agl.tagged(agent="writer"):
    ask("by a name")
    agl.emit_reward(0.25, agent="writer")
agl.emit_reward(0.75)
"""
    )
    outcome = await run(tmp_path, source, server, tasks=[{"x": 7}], tags={"phase": "night"})
    (record,) = outcome.records
    assert record.rollout.input == {"x": 7} and outcome.asked == ["7", "by a name"]
    assert [(reward.value, reward.agent) for reward in record.rewards] == [(0.25, "writer"), (0.75, None)]
    assert [call.tags.get("agent") for call in record.calls] == [None, "writer"]
    assert {call.tags["phase"] for call in record.calls} == {"night"}
    assert outcome.kinds == ["exact"] * 2


async def test_plugins_get_each_reward_once(tmp_path: Path, server: ScriptedModelServer) -> None:
    told: list[tuple[str, float]] = []

    class Listener:
        @hookimpl
        def agl_reward_emitted(self, rollout_id: str, attempt_id: str, reward: Reward) -> None:
            told.append((rollout_id, reward.value))

    source = """
import os
import agentlightning as agl
agl.emit_reward(0.25, agent="writer")
agl.emit_reward(0.75)
open(os.environ["AGL_REWARD_FILE"], "w").write("0.5")
"""
    outcome = await run(tmp_path, source, server, plugins=load().with_listeners([Listener()]))
    ids = outcome.summary.rollouts * 3
    assert told == list(zip(ids, [0.25, 0.75, 0.5], strict=True))
    assert outcome.summary.rewards == [0.25, 0.75, 0.5]


@pytest.mark.slow
async def test_an_sdk_that_is_imported_in_the_first_call_loses_none(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    source = """
import importlib, threading
def ask(text):
    client = importlib.import_module("openai").OpenAI()
    return client.chat.completions.create(model="any", messages=[{"role": "user", "content": text}])
threads = [threading.Thread(target=ask, args=[str(n)]) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
ask("last")
"""
    outcome = await run(tmp_path, source, server)
    assert outcome.kinds == ["exact"] * 4 and len(server.log) == 4
    assert not outcome.summary.unsure and not outcome.summary.warnings


async def test_a_program_without_capture_is_known_from_the_gateway(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    source = """
import json, os, urllib.request
assert "agentlightning" not in __import__("sys").modules
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "from outside"}]}).encode()
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, head))
open(os.environ["AGL_REWARD_FILE"], "w").write("0.5")
"""
    outcome = await run(tmp_path, source, server, flags=["-I"], tags={"side": "left"})
    assert outcome.kinds == ["gateway-only"] and outcome.summary.processes == 0
    assert outcome.summary.unsure == {"gateway-only: no wire span": 1}
    assert any("plain HTTP" in line and "agl-core beside" in line for line in outcome.summary.warnings)
    assert outcome.summary.rewards == [0.5]
    assert outcome.records[0].calls[0].tags["side"] == "left"


async def test_a_program_without_calls_gets_a_warning(tmp_path: Path, server: ScriptedModelServer) -> None:
    outcome = await run(tmp_path, "print(end='')", server)
    assert outcome.summary.calls == 0 and "OPENAI_BASE_URL" in outcome.summary.warnings[0]


@pytest.mark.parametrize(
    ("text", "rewards", "reason"),
    [("0.5\n", [0.5], None), ("nan", [], "finite"), ("good", [], "'good'"), (None, [], None)],
)
async def test_a_reward_file(
    tmp_path: Path, server: ScriptedModelServer, text: str | None, rewards: list[float], reason: str | None
) -> None:
    place = tmp_path / "reward"
    place.write_text("0.9")  # of an earlier program
    source = "" if text is None else f"import pathlib; pathlib.Path({str(place)!r}).write_text({text!r})"
    outcome = await run(tmp_path, source, server, reward_file=str(place))
    assert outcome.summary.rewards == rewards
    (attempt,) = outcome.attempts
    assert (attempt.reason or "").find(reason or "") >= 0 and (attempt.reason is None) == (reason is None)
    assert outcome.summary.exit_codes == [0]


@pytest.mark.slow
async def test_each_process_is_a_rollout_of_its_own(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = """
import json, os, sys, urllib.request
task = json.loads(os.environ["AGL_TASK"])
assert sys.argv[1] == str(task)
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": f"task {task}"}]}).encode()
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, head))
open(os.environ["AGL_REWARD_FILE"], "w").write(str(task))
"""
    outcome = await run(tmp_path, source, server, "{task}", tasks=list(range(16)), concurrency=4)
    assert outcome.summary.statuses == {"succeeded": 16} and outcome.summary.exit_codes == [0] * 16
    assert outcome.asked == [f"task {i}" for i in range(16)]
    for i, record in enumerate(outcome.records):
        assert len(record.calls) == 1 and [reward.value for reward in record.rewards] == [float(i)]
    assert len({attempt.attempt_id for attempt in outcome.attempts}) == 16


@pytest.mark.slow
async def test_nothing_is_written_outside_the_run_folder(tmp_path: Path, server: ScriptedModelServer) -> None:
    home = tmp_path / "home"
    home.mkdir()
    before = dict(os.environ)
    command = [sys.executable, "-c", f"import os; os.chdir({str(home)!r})\n{CALL}\nask()"]
    outcome = await run_command(tmp_path, command, server)
    assert outcome.kinds == ["exact"] and list(home.iterdir()) == []
    assert os.environ == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "runs"]
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(p.name for p in folder.iterdir() if p.suffix not in (".lock",)) == ["store.sqlite"]


@pytest.mark.slow
async def test_refused_calls_are_counted_by_reason_apart_from_calls_past_the_gateway(
    tmp_path: Path,
) -> None:
    source = (
        CALL
        + """
import sys, openai
client = OpenAI(max_retries=0)
for made in (lambda: client.responses.create(model="any", input="find", tools=[{"type": "tool_search"}]),
             lambda: ask("no"), lambda: ask("past", OpenAI(base_url=sys.argv[1], max_retries=0))):
    try: made()
    except openai.APIStatusError as error: pass
ask("yes")
"""
    )

    def reply(body: dict[str, Any]) -> Reply | str:
        no = body["messages"][-1]["content"] == "no"
        return Reply(status=400, message="no such tool") if no else "ok"

    with ScriptedModelServer(reply) as server:
        outcome = await run(tmp_path, source, server, server.url)
    summary = outcome.summary
    assert summary.counts["calls-past-the-gateway"] == 1
    assert summary.refused == {"unsupported-field": 1, "HTTP 400 http-400": 1}
    assert summary.errors == 1 and outcome.kinds.count("exact") == 1
    assert "refused" in shown(summary)


async def test_a_refusal_that_no_sdk_saw_is_in_the_summary(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    source = """
import os, urllib.request
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", b"{",
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"})
try: urllib.request.urlopen(request)
except urllib.error.HTTPError as error: print(error)
"""
    outcome = await run(tmp_path, source, server)
    assert sum(outcome.summary.refused.values()) == 1 and not outcome.summary.warnings
