"""A small game for the tests of several policies: a wolf and a seer speak, a referee looks on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agl_testing import ScriptedModelServer
from e2e.test_line import Watch
from openai import AsyncOpenAI

import agentlightning as agl
import agl_local.plugin
from agentlightning import GRPO, LLM, PolicyFolder, Trainer
from agentlightning.plugins.manager import build
from plugins.local.tests.driver_fixtures import saved_policy

OPTIONS = {
    "threads": 1,
    "engine": "thread",
    "max_num_seqs": 16,
    "max_len": 256,
    "deterministic": True,
    "lr": 1e-3,
}
MAP = {"wolf": "wolves", "re:se.*": "town", "referee": "judge", "ghost": "old"}
KEY = "sk-of-the-judge"


async def said(client: AsyncOpenAI, llm: LLM, agent: str, text: str, **more: Any) -> str:
    with agl.tagged(agent=agent):
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": text}], max_tokens=4, **more
        )
    return answer.choices[0].message.content or ""


async def game(task: int, llm: LLM, resources: dict[str, Any]) -> float:
    """Sides are rewarded for what they say; their rewards are far apart."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        wolf = await said(client, llm, "wolf", f"{task} coins")
        seer = await said(client, llm, "seer", f"{task} coins {wolf}")
        seer += await said(client, llm, "seer", f"{task} coins {wolf} {seer}")
        await said(client, llm, "referee", f"{wolf} {seer}")
        if "old" in resources:
            await said(client, llm, "ghost", f"{wolf}?", temperature=1.0)
    agl.emit_reward(10.0 + sum(map(ord, wolf)) % 3, agent="wolf")
    agl.emit_reward(-10.0 - sum(map(ord, seer)) % 4, agent="seer")
    return float(sum(map(ord, wolf + seer)) % 5)


@asynccontextmanager
async def judge() -> AsyncIterator[LLM]:
    """A frozen endpoint."""
    async with ScriptedModelServer(lambda body: "fair", model="referee-1", ids="never") as server:
        yield LLM(endpoint=server.url, model="referee-1", api_key=KEY)


def trainer(folder: Path, watch: Watch, referee: LLM, *, old: bool = False, **options: Any) -> Trainer:
    policies: dict[str, Any] = {
        "wolves": saved_policy(folder.parent / "wolves", 1),
        "town": PolicyFolder(saved_policy(folder.parent / "town", 2), options={"lr": 2e-3}),
        "judge": referee,
    }
    if old:
        policies["old"] = PolicyFolder(folder.parent / "wolves", train=False)
    known = {who: name for who, name in MAP.items() if name in policies}
    save_every = options.pop("save_every", 2)
    defaults: dict[str, Any] = dict(
        algorithm=GRPO(group_size=4, credit="per_agent"),
        policy=policies,
        policies=known,
        options={**OPTIONS, "save_every": save_every},
        steps=3,
        batch_size=2,
        output=folder,
        run="r",
        trackers=["files"],
        plugins=build([agl_local.plugin, watch], discover=False),
    )
    return Trainer(**{**defaults, **options})


def digests(watch: Watch) -> dict[tuple[int, str], tuple[str | None, str | None]]:
    return {(r.step, r.policy): (r.rows_digest, r.params_digest) for r in watch.reports}
