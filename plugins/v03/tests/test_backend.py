"""Agent Lightning 0.1's server of tasks, its client, and ``Trainer.fit(agent, url)``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
import agl_v03.plugin
from agentlightning import AgentLightningClient, AgentLightningServer, DevTaskLoader, RolloutLegacy, Task
from agentlightning.plugins.manager import build

PROMPT = {"system_prompt": agl.PromptTemplate(template="Say {x}")}


class Prompted(agl.LitAgent[Any]):
    """0.1's client of a prompt search."""

    def training_rollout(self, task: Any, rollout_id: str, resources: Any) -> float:  # type: ignore[override]
        if task == "fails":
            raise ValueError("on purpose")
        return float(len(resources["system_prompt"].template) + len(task["prompt"]))


@pytest.fixture
async def server() -> AsyncIterator[AgentLightningServer]:
    made = AgentLightningServer(port=0)
    await made.start()
    yield made
    await made.stop()


def trainer(folder: Path, **given: Any) -> agl.Trainer:
    return agl.Trainer(output=folder, trackers=[], plugins=build([agl_v03.plugin], discover=False), **given)


@pytest.mark.filterwarnings("ignore:Trainer. 'n_workers':FutureWarning")
async def test_a_client_works_for_a_server(server: AgentLightningServer, tmp_path: Path) -> None:
    await server.update_resources(PROMPT)
    first = await server.queue_task({"prompt": "four"}, mode="train")
    assert await server.get_completed_rollout(first) is None
    fit = trainer(tmp_path, n_workers=2, max_tasks=2).fit
    running = asyncio.create_task(asyncio.to_thread(fit, Prompted(), f"{server.endpoint}/"))
    report = await server.poll_completed_rollout(first, timeout=300)
    assert report is not None and report.final_reward == 11.0 and report.rollout_id == first
    assert await server.get_completed_rollout(first) is None  # a report is given once
    bad = await server.queue_task("fails")
    more = [await server.queue_task({"prompt": "x" * n}, mode="val") for n in (1, 2)]
    assert await running == {"succeeded": 3, "failed": 1}  # two tasks for each of two workers
    reports = {one.rollout_id: one.final_reward for one in await server.retrieve_completed_rollouts()}
    assert reports == {bad: None, more[0]: 8.0, more[1]: 9.0}  # a failure has no reward


async def test_a_client_by_hand(server: AgentLightningServer) -> None:
    client = AgentLightningClient(server.endpoint, poll_interval=0.2)
    assert await client.get_latest_resources_async() is None
    resources_id = await server.update_resources(PROMPT)
    queued = await server.queue_task({"prompt": "a"}, resources_id=resources_id, metadata={"k": 1})

    def work() -> str:
        task = client.poll_next_task()
        resources = client.get_resources_by_id(task.resources_id or "")
        assert resources is not None and resources.resources == PROMPT and task.metadata == {"k": 1}
        assert client.get_latest_resources() == resources and client.get_resources_by_id("no") is None
        triplet = agl.Triplet(prompt_ids=[1], response_ids=[2], reward=0.5)
        client.post_rollout(RolloutLegacy(rollout_id=task.rollout_id, final_reward=1.0, triplets=[triplet]))
        return task.rollout_id

    assert await asyncio.to_thread(work) == queued and client.task_count == 1
    report = await server.get_completed_rollout(queued)
    assert report is not None and report.final_reward == 1.0
    assert [(one.prompt["token_ids"], one.reward) for one in report.triplets or []] == [([1], 0.5)]
    with pytest.raises(agl.UsageError, match="is no task of this client"):
        await client.post_rollout_async(RolloutLegacy(rollout_id=queued))


async def test_a_server_that_does_not_run_says_so() -> None:
    with pytest.raises(agl.UsageError, match=r"not running: await server\.start\(\)"):
        await AgentLightningServer().queue_task("x")


@pytest.mark.slow
@pytest.mark.parametrize(
    "tasks", [[{"prompt": "a"}], [Task(rollout_id="t", input={"prompt": "a"}, mode="train")]]
)
def test_tasks_without_a_server(tasks: list[Any], tmp_path: Path) -> None:
    loader = DevTaskLoader(tasks, PROMPT)
    counts = trainer(tmp_path, dev=True, max_tasks=2).fit(Prompted(), "http://localhost:9999/", loader)
    assert counts == {"succeeded": 2} and [one.final_reward for one in loader.rollouts] == [8.0, 8.0]


@pytest.mark.slow
def test_dev_without_tasks_and_unknown_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(agl.UsageError, match=r"give dev_backend=agl\.DevTaskLoader"):
        trainer(tmp_path, dev=True).fit(Prompted(), "http://localhost:9999/")
    with pytest.raises(TypeError, match=r"fit\(\) has no argument 'validation'"):
        trainer(tmp_path).fit(Prompted(), ["a"], validation=["b"])
    with pytest.raises(ValueError, match="there is no task"):
        DevTaskLoader([], PROMPT)
    with pytest.raises(ValueError, match="give one kind"):
        DevTaskLoader(["a", Task(rollout_id="t", input="b")], PROMPT)


@pytest.mark.slow
def test_fit_v0_names_its_arguments(tmp_path: Path) -> None:
    loader = DevTaskLoader([{"prompt": "a"}], PROMPT)
    assert trainer(tmp_path).fit_v0(Prompted(), train_data=loader) == {"succeeded": 1}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Trainer. 'n_workers':FutureWarning")
def test_the_command_line_makes_agent_and_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(agl.LitAgent[Any]):
        def __init__(
            self,
            trained_agents: str | None = "write",
            turns: int = 3,
            names: list[str] | None = None,
            *,
            deep: bool,
        ) -> None:
            super().__init__(trained_agents=trained_agents)
            self.given = (turns, names, deep)

    words = "--mine.trained-agents none --mine.turns 5 --mine.names a b --mine.deep yes --trainer.n-workers 7"
    monkeypatch.setattr(sys, "argv", ["program", *words.split(), "--trainer.max-tasks", "2"])
    agent, made = agl.lightning_cli(Mine, agl.Trainer)
    assert (agent.trained_agents, agent.given) == (None, (5, ["a", "b"], True))
    assert (made.config.agent.concurrency, made.max_tasks) == (7, 2)
    monkeypatch.setattr(sys, "argv", ["program", "--mine.deep", "maybe"])
    with pytest.raises(SystemExit):
        agl.lightning_cli(Mine)
