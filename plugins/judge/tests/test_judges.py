"""Judges in runs: what they are asked, what is recorded, and what is never asked twice."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agl_testing import ScriptedModelServer

import agentlightning as agl
from agl_audit.run import open_run
from agl_audit.store.reward_versions import find_version, read_records
from agl_judge.client import JUDGE, JudgeClient
from agl_judge.graders.relative import Rank, Tournament
from agl_judge.graders.rubric import Criterion, Rubric
from agl_judge.grading import Grading
from agl_judge.rescoring import rescore
from agl_judge.store import JUDGED_IN
from plugins.judge.tests.conftest import KEY, World, by_length, plugins, say

TASKS = ["a", "b", "c", "d"]


async def questions(world: World, run: str = "r") -> list[Any]:
    async with world.stored(run) as store:
        return [one for one in await store.query_rollouts(run_id=run) if JUDGE in one.metadata]


@pytest.mark.slow
async def test_a_judges_calls_are_recorded_beside_whom_they_judge_and_never_trained(world: World) -> None:
    summary = await world.trainer(group_reward=Rank("judge"), budget={"calls": 500}).afit(say, TASKS)
    asked = await questions(world)
    assert summary["group_reward"]["judge_calls"] == world.asked == len(asked) == 4
    assert summary["budget"]["spent"]["calls"] == 16 + 4  # the judge's calls are in the budget
    async with world.stored() as store:
        for one in asked:
            assert one.mode == "val" and len(one.metadata["rollouts"]) == 4
            (call,) = await store.query_calls(one.rollout_id)
            assert call.policy == "judge" and not call.selected and call.prompt_tokens
            judged = await store.records(one.metadata["rollouts"])
            for record in judged:
                assert record.rollout.group_id == one.metadata["group"]
                assert record.rewards[0].attributes[JUDGED_IN] == one.rollout_id
                assert all(call.policy == "student" for call in record.calls)
    written = [path for path in (world.folder / "runs" / "r").rglob("*") if path.is_file()]
    assert written and not any(KEY.encode() in path.read_bytes() for path in written)


@pytest.mark.slow
async def test_an_agent_reaches_neither_the_judge_nor_its_question(world: World) -> None:
    statuses: list[int] = []

    @agl.rollout
    async def curious(task: Any, llm: agl.LLM) -> None:
        headers = {"Authorization": f"Bearer {llm.api_key}"}
        for model in ("judge", llm.model):
            body = {"model": model, "messages": [{"role": "user", "content": str(task)}], "max_tokens": 2}
            async with (
                aiohttp.ClientSession() as http,
                http.post(f"{llm.endpoint}/chat/completions", json=body, headers=headers) as answer,
            ):
                statuses.append(answer.status)

    await world.trainer(group_reward=Rank("judge"), steps=1, batch_size=1).afit(curious, TASKS)
    assert sorted(set(statuses)) == [200, 403]


@pytest.mark.slow
async def test_a_judge_that_is_trained_or_unknown_is_refused_before_the_first_rollout(world: World) -> None:
    for name, why in (("student", "is trained"), ("nobody", "serves no policy")):
        with pytest.raises(agl.UsageError, match=why):
            await world.trainer(group_reward=Rank(name), run=name).afit(say, TASKS)


@pytest.mark.slow
async def test_a_tournament_asks_each_pair_in_both_orders(world: World) -> None:
    def first(body: dict[str, Any]) -> str:
        return json.dumps({"better": 1})  # a judge that always likes what comes first

    world.answers(first)
    given = world.trainer(group_reward=Tournament("judge"), steps=1, batch_size=1, no_signal_steps=5)
    await given.afit(say, TASKS)
    async with world.stored() as store:
        train = [one for one in await store.query_rollouts(run_id="r") if one.mode == "train"]
        records = await store.records([one.rollout_id for one in train])
    assert {record.rewards[0].value for record in records} == {0.5}  # its bias is worth nothing
    distinct = len({(record.calls[-1].response or {})["content"] for record in records})
    assert world.asked == distinct * (distinct - 1)


@pytest.mark.slow
async def test_rubrics_mix_code_and_judge_and_say_each_criterion(world: World) -> None:
    world.answers(lambda body: json.dumps({"scores": {"polite": 0.5}}))
    rubric = Rubric(
        Criterion("polite", ask="It is polite."),
        Criterion("long", check=lambda task, one: float(len(one.answer) > 0), weight=3.0),
        judge="judge",
    )
    summary = await world.trainer(group_reward=rubric, steps=1, batch_size=1, no_signal_steps=5).afit(
        say, TASKS, ["x"]
    )
    assert summary["reward_before"] in (0.125, 0.875)
    async with world.stored() as store:
        train = [one for one in await store.query_rollouts(run_id="r") if one.mode == "train"]
        (record, *_) = await store.records([one.rollout_id for one in train])
    assert {one.name for one in record.rewards} == {"reward", "polite", "long"}


@pytest.mark.slow
async def test_a_question_that_was_answered_is_not_sent_again_by_whoever_asks(world: World) -> None:
    await world.trainer(group_reward=Rank("judge"), steps=1).afit(say, TASKS)
    asked = world.asked
    async with world.trainer(run="other").session(say, TASKS) as context, world.stored() as store:
        ids = [one.rollout_id for one in await store.query_rollouts(run_id="r") if one.mode == "train"]
        context.store, context.run_id = store, "r"
        grading = Grading(Rank("judge", values="ranks"))  # reads the same answer in another way
        async with grading.open(context):
            again = await grading.grade(await store.records(ids))
            assert grading.counts.summary() == {"by": "rank"}  # the groups have their rewards
            client, values = grading._client, [one.rewards[0].value for one in again]
            (question, *_) = [one for one in await store.query_rollouts(run_id="r") if JUDGE in one.metadata]
            assert client is not None
            messages = question.input["messages"]
            found = await client.ask("judge", messages, lambda text: text)
    assert world.asked == asked and len(values) == 8 and found.rollout_id == question.rollout_id


@pytest.mark.slow
async def test_rescoring_asks_a_judge_nothing_that_is_on_record(world: World) -> None:
    await world.trainer(group_reward=Rank("judge"), steps=1).afit(say, TASKS)
    asked, folder = world.asked, str(world.folder / "runs" / "r")
    found = []
    for _ in range(2):
        async with (
            open_run(folder, read_only=False, plugins=plugins()) as run,
            JudgeClient(run.store, None, "r") as client,
        ):
            found.append(await rescore(run, Rank("judge", values="ranks"), client, Counter(), "ranks"))
            version = await find_version(run.store, "r", "ranks")
            ids = [one.rollout_id for one in await run.store.query_rollouts(run_id="r")]
            again = await read_records(run.store, ids, version, Counter())
            with pytest.raises(agl.UsageError, match="nobody is there to ask"):
                await client.ask("judge", [{"role": "user", "content": "new"}], str)
    assert world.asked == asked and found[0]["scored"] == found[1]["scored"] == 8
    assert found[0]["stored"] == 8 and found[1]["stored"] == 0
    values = [one.rewards[0].value for one in again if one.rollout.mode == "train"]
    assert len(values) == 8 and sum(values) == pytest.approx(4.0)  # ranks of a group have a mean of a half


@pytest.mark.slow
async def test_a_run_that_is_killed_asks_nothing_twice(tmp_path: Path) -> None:
    """kill -9 in the second step: its rollouts run again with the same words, and what was judged holds."""
    program = [sys.executable, str(Path(__file__).with_name("judging.py")), str(tmp_path)]

    async def answered() -> dict[str, int]:
        """Questions that were answered → their calls."""
        store = agl.open_store(tmp_path / "r" / "store.sqlite", plugins=plugins())
        try:
            asked = [one for one in await store.query_rollouts(run_id="r") if JUDGE in one.metadata]
            done = [one.rollout_id for one in asked if one.status == "succeeded"]
            return {one: len(await store.query_calls(one, None)) for one in done}
        finally:
            await store.close()

    async with ScriptedModelServer(by_length, model="judge-1", ids="never") as server:
        begun = await asyncio.create_subprocess_exec(*program, server.url)
        while len(server.log) < 4 and begun.returncode is None:
            await asyncio.sleep(0.02)
        begun.kill()
        await begun.wait()
        before = await answered()
        again = await asyncio.create_subprocess_exec(*program, server.url, "--resume")
        assert await again.wait() == 0
    after = await answered()
    assert before and before == {one: after[one] for one in before}  # not one of them was sent again
    assert len(after) == 6  # a question for each group of the three steps
