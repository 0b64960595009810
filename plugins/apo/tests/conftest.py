"""A run with scripted models: an agent whose reward depends on its prompt, a critic and an editor."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agl_testing import Reply, ScriptedModelServer

import agentlightning as agl
from agentlightning.plugins.manager import build
from agl_apo import plugin

WORDS = ("please", "carefully", "briefly", "truly")
"""The agent's model obeys a prompt as far as it holds these words."""


def agent_model(body: dict[str, Any]) -> str:
    """Answer right where the prompt has more of the words than the task is hard."""
    text = body["messages"][-1]["content"]
    level = int(re.search(r"level (\d+)", text)[1])  # type: ignore[index]
    return "right" if sum(word in text for word in WORDS) > level else "wrong"


class Helper:
    """Critic and editor: the critic names the first word that the prompt lacks, the editor adds it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.spoil: Callable[[int, str], str | Reply | None] = lambda n, role: None

    def __call__(self, body: dict[str, Any]) -> str | Reply:
        self.asked.append(body)
        text = body["messages"][-1]["content"]
        role = "editor" if "Critique:" in text else "critic"
        if (spoiled := self.spoil(len(self.asked), role)) is not None:
            return spoiled
        prompt = text.partition("<prompt>\n")[2].partition("\n</prompt>")[0]
        if role == "critic":
            return f"It lacks: {next((word for word in WORDS if word not in prompt), 'nothing')}"
        return f"<prompt>{prompt} {text.rpartition('It lacks: ')[2]}</prompt>"


@agl.rollout
async def ask(task: dict[str, Any], prompt_template: agl.PromptTemplate, resources: dict[str, Any]) -> float:
    """Ask the scripted model of the run by plain HTTP."""
    import aiohttp

    llm = resources.get("agent") or resources["llm"]
    body = {"model": llm.model, "messages": [{"role": "user", "content": prompt_template.format(**task)}]}
    headers = {"Authorization": f"Bearer {llm.api_key}", "x-agl-agent": "asker"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{llm.endpoint}/chat/completions", json=body, headers=headers) as answer,
    ):
        found = await answer.json()
    return float(found["choices"][0]["message"]["content"] == "right")


TASKS = [{"id": f"t{n}", "question": f"level {n % 4}", "answer": "right"} for n in range(16)]
FIRST = "Answer the question: {question}"


class World:
    """A folder of runs, and servers for agent, critic and editor."""

    def __init__(self, folder: Path, model: ScriptedModelServer, helper: Helper, served: ScriptedModelServer):
        self.folder, self.model, self.helper, self.served = folder, model, helper, served

    @property
    def critic(self) -> agl.LLM:
        return agl.LLM(endpoint=self.served.url, model="helper", api_key="secret-of-critic")

    def trainer(self, algorithm: Any, **fields: Any) -> agl.Trainer:
        given = {"output": self.folder, "run": "search", "trackers": [], "seed": 3, **fields}
        policy = {"agent": agl.LLM(endpoint=self.model.url, model=self.model.model)}
        return agl.Trainer(algorithm, plugins=build([plugin], discover=False), policy=policy, **given)

    async def fit(self, algorithm: Any, held_out: Any = TASKS[8:], **fields: Any) -> dict[str, Any]:
        return await self.trainer(algorithm, **fields).afit(ask, TASKS[:8], held_out)

    @asynccontextmanager
    async def stored(self, run: str = "search") -> AsyncIterator[Any]:
        store = agl.open_store(self.folder / run / "store.sqlite", plugins=build(discover=False))
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    helper = Helper()
    model = ScriptedModelServer(agent_model, model="small")
    served = ScriptedModelServer(helper, model="helper")
    async with model, served:
        yield World(tmp_path, model, helper, served)


@pytest.fixture
def world_in_a_thread(tmp_path: Path) -> Iterator[World]:
    helper = Helper()
    model, served = (
        ScriptedModelServer(agent_model, model="small"),
        ScriptedModelServer(helper, model="helper"),
    )
    with model, served:
        yield World(tmp_path, model, helper, served)
