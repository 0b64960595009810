"""``--per-entry``: each outermost call of a decorated entry is a rollout, its number the reward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agl_testing import ScriptedModelServer

from plugins.programs.tests.running import CALL, Outcome, run

AGENTS = (
    CALL
    + """
import asyncio, openai
import agentlightning as agl

later = openai.AsyncOpenAI(max_retries=0)

async def ask_later(text):
    await later.chat.completions.create(model="any", messages=[{"role": "user", "content": text}])

@agl.rollout
def solve(task):
    ask(task)
    return 0.5

@agl.agent(methods=["run", "stream", "items", "again"])
class Writer:
    async def run(self, task, reward):
        await ask_later(task)
        return reward

    async def stream(self, task):
        await ask_later(task + " 1")
        heard = yield 1
        await ask_later(f"{task} {heard}")
        yield 0.25

    def items(self, task):
        ask(task)
        heard = yield "one"
        ask(f"{task} {heard}")
        return 0.75

    def again(self, task):
        solve(task)
        return {"not": "a number"}
"""
)


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer() as one:
        yield one


def by_task(outcome: Outcome) -> dict[str, tuple[list[str], list[float], str]]:
    """Task of each entry → messages, rewards and status."""
    found = {}
    for record in outcome.records[1:]:
        asked = [call.request["messages"][-1]["content"] for call in record.calls if call.request]
        rewards = [reward.value for reward in record.rewards if reward.final]
        found[str(record.rollout.input)] = asked, rewards, str(record.rollout.status)
    return found


@pytest.mark.slow
async def test_each_kind_of_entry_is_a_rollout(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = (
        AGENTS
        + """
ask("outside")
assert solve("plain") == 0.5
writer = Writer()

async def main():
    assert await asyncio.gather(writer.run("a", 1.0), writer.run("b", reward=0.0)) == [1.0, 0.0]
    stream = writer.stream("streamed")
    await anext(stream); await stream.asend("heard")
    async for _ in stream: pass

asyncio.run(main())
items = writer.items("itemised")
assert next(items) == "one"
try: items.send("heard")
except StopIteration as end: assert end.value == 0.75
assert writer.again("nested") == {"not": "a number"}
"""
    )
    outcome = await run(tmp_path, source, server, per_entry=True)
    assert outcome.summary.exit_codes == [0], outcome.summary
    assert by_task(outcome) == {
        "plain": (["plain"], [0.5], "succeeded"),
        "{'task': 'a', 'reward': 1.0}": (["a"], [1.0], "succeeded"),
        "{'task': 'b', 'reward': 0.0}": (["b"], [0.0], "succeeded"),
        "streamed": (["streamed 1", "streamed heard"], [0.25], "succeeded"),
        "itemised": (["itemised", "itemised heard"], [0.75], "succeeded"),
        "nested": (["nested"], [], "succeeded"),
    }
    assert [call.request["messages"][-1]["content"] for call in outcome.records[0].calls if call.request] == [
        "outside"
    ]
    assert set(outcome.kinds) == {"exact"} and outcome.summary.counts == {}
    assert [record.rollout.mode for record in outcome.records] == ["val", *["train"] * 6]


@pytest.mark.slow
async def test_entries_that_raise_or_never_return(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = (
        AGENTS
        + """
import os

@agl.rollout
def broken(task):
    ask(task)
    if task == "end": os._exit(5)
    raise KeyError("lost")

try: broken("raise")
except KeyError: pass
broken("end")
"""
    )
    outcome = await run(tmp_path, source, server, per_entry=True)
    assert outcome.summary.exit_codes == [5]
    assert by_task(outcome) == {"raise": (["raise"], [], "failed"), "end": (["end"], [], "failed")}
    reasons = [attempt.reason or "" for attempt in outcome.attempts[1:]]
    assert "EntryFailed: KeyError: 'lost'" in reasons[0] and "before its entry returned" in reasons[1]


@pytest.mark.slow
async def test_without_the_option_all_is_one_rollout(tmp_path: Path, server: ScriptedModelServer) -> None:
    outcome = await run(tmp_path, AGENTS + "\nassert solve('one') == 0.5", server)
    assert len(outcome.records) == 1 and outcome.asked == ["one"] and outcome.kinds == ["exact"]


@pytest.mark.slow
async def test_an_entry_in_a_forked_process(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = (
        AGENTS
        + """
import multiprocessing
other = multiprocessing.get_context("fork").Process(target=solve, args=("forked",))
other.start(); other.join(); assert not other.exitcode
solve("here")
"""
    )
    outcome = await run(tmp_path, source, server, per_entry=True)
    assert by_task(outcome) == {
        "forked": (["forked"], [0.5], "succeeded"),
        "here": (["here"], [0.5], "succeeded"),
    }


@pytest.mark.slow
async def test_a_reward_function_rewards_its_entry(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = (
        AGENTS
        + """
@agl.agent(reward=lambda result: None if result == "none" else len(result) / 8)
class Poet:
    def run(self, task):
        ask(task)
        return task

@agl.rollout
def around(task):
    Poet().run(task)
    return 0.125

assert Poet().run("poem") == "poem"
assert Poet().run("none") == "none"
around("inner")
"""
    )
    outcome = await run(tmp_path, source, server, per_entry=True)
    assert outcome.summary.exit_codes == [0]
    assert by_task(outcome) == {
        "poem": (["poem"], [0.5], "succeeded"),
        "none": (["none"], [], "succeeded"),
        "inner": (["inner"], [0.125], "succeeded"),
    }
    inner = [reward for reward in outcome.records[3].rewards if reward.agent == "Poet"]
    assert [reward.value for reward in inner] == [0.625]


@pytest.mark.slow
async def test_results_of_any_kind_leave_the_program_alone(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    source = (
        AGENTS
        + """
class Scalar:
    shape = ()
    def item(self): return 0.5

class Mute(Exception):
    def __str__(self): raise ValueError("no words")

@agl.rollout
def give(task):
    made = {"nan": float("nan"), "large": 10**400, "scalar": Scalar()}
    if task == "mute": raise Mute
    return made[task]

for task in ("nan", "large", "scalar"): give(task)
try: give("mute")
except Mute: pass

@agl.rollout
def long(task): return 1.0
assert long(2**70) == 1.0
ring = []
ring.append(ring)
assert long(ring) == 1.0
"""
    )
    outcome = await run(tmp_path, source, server, per_entry=True)
    assert outcome.summary.exit_codes == [0]
    assert {task: found[1:] for task, found in by_task(outcome).items()} == {
        "nan": ([], "failed"),
        "large": ([], "failed"),
        "scalar": ([0.5], "succeeded"),
        "mute": ([], "failed"),
        "['(a cycle)']": ([1.0], "succeeded"),
    }
    reasons = [attempt.reason or "" for attempt in outcome.attempts[1:]]
    assert [reason.partition(":")[0] for reason in reasons if reason] == ["bad-reward"] * 2 + ["agent-raised"]
    assert outcome.summary.counts == {"entry-denied": 1, "convert-cut": 1}
