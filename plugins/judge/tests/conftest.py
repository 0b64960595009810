"""A run with a tiny policy and a scripted judge; its agent asks once, and has no reward in training."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import agl_gateway.plugin
import aiohttp
import pytest
from agl_testing import Reply, ScriptedModelServer

import agentlightning as agl
import agl_audit.plugin
import agl_judge.plugin
import agl_local.plugin
from agentlightning.plugins.manager import build
from plugins.local.tests.driver_fixtures import saved_policy

KEY = "sk-of-the-judge"
OPTIONS = {"threads": 1, "engine": "thread", "max_num_seqs": 16, "max_len": 256, "deterministic": True}


def plugins(*more: Any) -> Any:
    return build(
        [agl_local.plugin, agl_judge.plugin, agl_audit.plugin, agl_gateway.plugin, *more], discover=False
    )


@agl.rollout
async def say(task: Any, llm: agl.LLM, rollout: agl.Rollout) -> float | None:
    """Ask the policy for a few letters; held-out tasks have a reward of their own."""
    text = await asked(llm, f"say {task}")
    return float(len(text)) if rollout.mode != "train" else None


async def asked(llm: agl.LLM, text: str) -> str:
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {llm.api_key}", "x-agl-agent": "speaker"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{llm.endpoint}/chat/completions", json=body, headers=headers) as answer,
    ):
        found = await answer.json()
    return str(found["choices"][0]["message"]["content"])


def candidates(body: dict[str, Any]) -> list[str]:
    """The candidates that a question shows."""
    text = next(m["content"] for m in body["messages"] if m["role"] == "user")
    return re.findall(r'<candidate number="\d+">\n(.*?)\n</candidate>', text, re.DOTALL)


def by_length(body: dict[str, Any]) -> str:
    """A judge that likes long answers."""
    found = candidates(body)
    return json.dumps({"scores": [min(1.0, len(one) / 100) for one in found]})


class World:
    """A folder of runs, and the judge that they ask."""

    def __init__(self, folder: Path, server: ScriptedModelServer) -> None:
        self.folder, self.server = folder, server

    @property
    def judge(self) -> agl.LLM:
        return agl.LLM(endpoint=self.server.url, model="judge-1", api_key=KEY)

    @property
    def asked(self) -> int:
        """Requests that the judge has got."""
        return len(self.server.log)

    def answers(self, reply: Callable[[dict[str, Any]], str | Reply]) -> None:
        self.server.reply = reply

    def trainer(self, *more: Any, **fields: Any) -> agl.Trainer:
        policy = self.folder / "policy"
        if not policy.exists():
            saved_policy(policy, 1)
        given: dict[str, Any] = {
            "algorithm": agl.GRPO(group_size=4),
            "policy": {"student": policy, "judge": self.judge},
            "policies": {"re:.*": "student"},
            "options": OPTIONS,
            "steps": 2,
            "batch_size": 2,
            "output": self.folder / "runs",
            "run": "r",
            "trackers": ["files"],
            "evaluate_sampled": False,
            "plugins": plugins(*more),
        }
        return agl.Trainer(**{**given, **fields})

    @asynccontextmanager
    async def stored(self, run: str = "r") -> AsyncIterator[Any]:
        store = agl.open_store(self.folder / "runs" / run / "store.sqlite", plugins=plugins())
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with ScriptedModelServer(by_length, model="judge-1", ids="never") as server:
        yield World(tmp_path, server)
