"""Scripted policies beside those of a run: refused, served, measured."""

from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer
from agl_testing.headroom import Headroom, headroom_of
from openai import AsyncOpenAI

import agentlightning as agl
from agentlightning.plugins.manager import build
from agentlightning.specs import Comparison
from agentlightning.train.config import from_fields
from agentlightning.types import LLM
from agentlightning.types.base import ConfigError

TASKS = [{"q": "1+1", "a": "2"}, {"q": "2+2", "a": "4"}, {"q": "3+3", "a": "6"}]


def knows(tasks: Any) -> Any:
    """The script of a policy that knows the answers of ``tasks``."""
    answers = {task["q"]: task["a"] for task in tasks}
    return lambda body: answers[body["messages"][-1]["content"]]


async def solve(task: dict[str, Any], llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        messages = [{"role": "user", "content": task["q"]}]
        answer = await client.chat.completions.create(model=llm.model, messages=messages)
    return float(answer.choices[0].message.content == task["a"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headroom", "said"),
    [
        ({"old": list}, "headroom: 'old' is the name of a policy; choose another"),
        ({"oracle": "x"}, "environment.headroom.oracle: 'x' must be written module:object"),
        ({"oracle": "no.such:x"}, "environment.headroom.oracle: cannot import 'no.such'"),
    ],
)
async def test_what_cannot_be_compared_leaves_no_folder(headroom: Any, said: str, tmp_path: Path) -> None:
    policy = {"old": LLM(endpoint="http://127.0.0.1:9/v1", model="m")}
    trainer = agl.Trainer(policy=policy, headroom=headroom, output=tmp_path / "runs")
    with pytest.raises(ConfigError, match=said):
        async with trainer.session(solve, (), TASKS):
            pass
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
async def test_scripted_policies_are_served_and_measured(tmp_path: Path) -> None:
    said: list[str] = []
    async with ScriptedModelServer(lambda body: "4", model="m") as server:
        fields: dict[str, Any] = {
            "policy": {"main": LLM(endpoint=server.url, model="m")},
            "headroom_tasks": 2,
        }
        trainer = agl.Trainer(headroom={"oracle": knows}, output=tmp_path, trackers=[], **fields)
        async with trainer.session(solve, (), TASKS) as context:
            context.say = said.append
            (comparison,) = context.comparisons
            before = await context.evaluate(TASKS, name="before")
            found = await comparison.measure(context, before)
            assert await comparison.measure(context, None) == {}
            records = await context.store.records(
                [one.rollout_id for one in await context.store.query_rollouts(run_id=context.run_id)]
            )
    assert found == {"policy": pytest.approx(1 / 3), "oracle": 1.0}
    assert said == ["Headroom: policy 0.333, oracle 1.000 → 67 points to gain"]
    answered = sorted(str(call.policy) for record in records for call in record.calls)
    assert answered == ["main"] * 3 + ["oracle"] * 2


@pytest.mark.slow
async def test_a_policy_that_is_as_good_as_the_oracle_is_told_so(tmp_path: Path) -> None:
    said: list[str] = []
    async with ScriptedModelServer(lambda body: "2", model="m") as server:
        trainer = agl.Trainer(
            policy={"main": LLM(endpoint=server.url, model="m")},
            headroom={"oracle": knows},
            output=tmp_path,
            trackers=[],
        )
        async with trainer.session(solve, (), TASKS[:1]) as context:
            context.say = said.append
            before = await context.evaluate(context.val, name="before")
            await context.comparisons[0].measure(context, before)
    assert said[-1] == "Under 15 points of headroom: this task will teach this policy nothing."


@pytest.mark.slow
def test_the_hook_answers_with_a_comparison() -> None:
    config = from_fields({"policy": "x", "headroom": {"oracle": knows}})
    (found,) = build().answers("agl_comparisons", config=config)
    comparison: Comparison = found
    assert isinstance(found, Headroom) and comparison.name == "headroom"
    empty = headroom_of(from_fields({"policy": "x"}))
    assert empty is not None and empty.name == "headroom"
