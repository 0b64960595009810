"""Weights and prompts in one loop: a driver that counts its steps, and prompts that change between them."""

from __future__ import annotations

from typing import Any

import pytest

import agentlightning as agl
import agl_schedules.plugin
from agentlightning.plugins.manager import build
from agentlightning.specs import DriverSpec
from agentlightning.types import LLM
from agl_apo import plugin
from agl_apo.alternate import Alternate

from .conftest import FIRST, TASKS, World, ask

BOTH = {"asker": "weights", "writer": "prompt"}


class CountingDriver:
    """Serves a scripted model, collects each step, and trains nothing."""

    def __init__(self, url: str) -> None:
        self._url, self._version, self.collected = url, 0, []

    async def start(self) -> LLM:
        return LLM(endpoint=self._url, model="small")

    async def resume(self, folder: Any, step: int | None = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    async def checkpoints(self, folder: Any) -> list[int]:
        return []

    @property
    def version(self) -> int:
        return self._version

    async def run(self, job: Any) -> None:
        for step in range(job.steps):
            await job.collect(step)
            self.collected.append(job.state())
            self._version += 1

    async def export(self, folder: Any) -> Any:
        folder.mkdir(parents=True)
        return folder

    async def close(self) -> None:
        pass


def trainer(world: World, algorithm: Any, driver: CountingDriver | None, **fields: Any) -> agl.Trainer:
    spec = DriverSpec("counting", lambda policy, recipe, training: driver)

    class Drivers:
        @agl.hookimpl
        def agl_drivers(self) -> list[DriverSpec]:
            return [spec]

    given: dict[str, Any] = {"steps": 6, "batch_size": 2, "select": ["asker"], "recipe": {"group_size": 2}}
    policy: Any = str(world.folder)
    if driver is None:
        policy = {"agent": agl.LLM(endpoint=world.model.url, model="small")}
    return agl.Trainer(
        algorithm,
        plugins=build([plugin, agl_schedules.plugin, Drivers()], discover=False),
        driver="counting",
        policy=policy,
        output=world.folder / "runs",
        run="both",
        trackers=[],
        **{**given, **fields},
    )


def alternate(world: World, agents: dict[str, Any] = BOTH, **settings: Any) -> Alternate:
    given = {"prompts": {"prompt_template": FIRST}, "prompt_of": {"writer": "prompt_template"}, "every": 2}
    return Alternate(agents, critic=world.critic, **{**given, **settings})


@pytest.mark.slow
async def test_prompts_change_between_steps_and_later_rollouts_have_them(world: World) -> None:
    driver = CountingDriver(world.model.url)
    summary = await trainer(world, alternate(world), driver).afit(ask, TASKS[:8], TASKS[8:])
    assert [one["step"] for one in summary["rounds"]] == [2, 4, 6]
    assert summary["reward_before"] == 0.0 and summary["reward_after"] > summary["reward_before"]
    asked = [one.body["messages"][-1]["content"] for one in world.model.log]
    assert any("please carefully" in text for text in asked)
    kept = [one["prompts"]["prompts"]["prompt_template"]["template"] for one in driver.collected]
    assert kept[0] == kept[1] == FIRST and kept[2] == kept[3] != FIRST and kept[4] != kept[3]


@pytest.mark.slow
async def test_the_critic_reads_the_rollouts_that_the_last_step_trained(world: World) -> None:
    driver = CountingDriver(world.model.url)
    made = trainer(world, alternate(world), driver, steps=2)
    await made.afit(ask, TASKS[:8], TASKS[8:])
    reports = [state["prompts"]["last"] for state in driver.collected]
    assert [len(ids) for ids in reports] == [4, 4] and not {*reports[0]} & {*reports[1]}


@pytest.mark.slow
async def test_after_an_early_stop_the_last_round_is_of_the_steps_that_were_made(world: World) -> None:
    class Stops(CountingDriver):
        """Ends after five of six steps, as an early stop has it."""

        async def run(self, job: Any) -> None:
            for step in range(5):
                await job.collect(step)
            job.steps = 5

    summary = await trainer(world, alternate(world), Stops(world.model.url)).afit(ask, TASKS[:8], TASKS[8:])
    assert [one["step"] for one in summary["rounds"]] == [2, 4, 5] and summary["steps"] == 5


@pytest.mark.slow
async def test_tasks_that_repeat_in_a_step_are_said(world: World, capsys: Any) -> None:
    driver = CountingDriver(world.model.url)
    await trainer(world, alternate(world), driver, steps=1, batch_size=3).afit(ask, TASKS[:2], TASKS[8:])
    assert "a step draws 3 tasks and the dataset has 2" in capsys.readouterr().err


@pytest.mark.slow
async def test_prompts_alone_need_no_driver(world: World) -> None:
    agents: Any = {"asker": "freeze", "writer": "prompt"}
    summary = await trainer(world, alternate(world, agents), None).afit(ask, TASKS[:8], TASKS[8:])
    assert len(summary["rounds"]) == 3 and summary["steps"] == 0
    assert summary["reward_after"] > summary["reward_before"]


@pytest.mark.slow
async def test_a_spent_budget_leaves_the_prompts_and_trains_on(world: World) -> None:
    driver = CountingDriver(world.model.url)
    algorithm = alternate(world, budget={"calls": 20})
    summary = await trainer(world, algorithm, driver).afit(ask, TASKS[:8], TASKS[8:])
    assert "budget" in summary["stopped"] and len(driver.collected) == 6
    assert summary["spent"]["calls"] <= 20


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"select": None}, r"give \['asker'\]"),
    ({"async_steps": 1, "recipe": {"max_staleness": 1}}, "async_steps"),
    ({"dynamic_sampling": 2, "recipe": {"filter_zero_std_groups": True}}, "training.dynamic_sampling: only"),
    ({"recipe": {"group_size": 1}}, "recipe.group_size = 1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "said"), REFUSED)
async def test_what_cannot_be_is_refused(world: World, fields: dict[str, Any], said: str) -> None:
    made = trainer(world, alternate(world), CountingDriver(world.model.url), **fields)
    with pytest.raises(agl.UsageError, match=said):
        await made.afit(ask, TASKS, TASKS)


def test_agents_are_checked() -> None:
    for agents, said in [
        ({"a": "train"}, "choose weights, prompt or freeze"),
        ({"a": "freeze"}, "all are frozen"),
        ({"a": "prompt"}, "give critic"),
    ]:
        with pytest.raises(agl.UsageError, match=said):
            Alternate(agents)  # type: ignore[arg-type]
