"""A whole run over the Tinker API: two policies are trained beside a frozen one, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker.types")

from openai import AsyncOpenAI

import agentlightning as agl
import agl_tinker.plugin
from agentlightning import GRPO, LLM, PolicyFolder, Trainer
from agentlightning.plugins.manager import build
from plugins.tinker.tests.running import Running

NAMES = ("town", "wolves")


async def game(task: int, llm: LLM) -> None:
    """Sides are rewarded for what they say; a referee of the base's weights looks on."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for agent in ("wolf", "seer", "referee"):
            with agl.tagged(agent=agent):
                answer = await client.chat.completions.create(
                    model=llm.model, messages=[{"role": "user", "content": f"{task}?"}], max_tokens=4
                )
            if agent != "referee":
                said = answer.choices[0].message.content or ""
                agl.emit_reward(float(sum(map(ord, said)) % 3), agent=agent)


def trainer(folder: Path, served: Running, output: Path, steps: int, **more: Any) -> Trainer:
    frozen = PolicyFolder(folder, train=False)
    return Trainer(
        algorithm=GRPO(group_size=4, credit="per_agent"),
        policy={"wolves": folder, "town": PolicyFolder(folder, options={"rank": 2}), "judge": frozen},
        policies={"wolf": "wolves", "seer": "town", "referee": "judge"},
        driver="tinker",
        options={"base_model": "tiny", "base_url": served.url, "rank": 4, "lr": 1e-2, "save_every": 1},
        steps=steps,
        **more,
        batch_size=2,
        output=output,
        run="r",
        trackers=["files"],
        plugins=build([agl_tinker.plugin], discover=False),
    )


def reports(output: Path) -> list[dict[str, Any]]:
    lines = (output / "r" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


async def test_two_policies_beside_a_frozen_one(served: Running, folder: Path, tmp_path: Path) -> None:
    summary = await trainer(folder, served, tmp_path, 2).afit(game, [3, 5, 8])
    assert (
        summary["totals"]["calls"] == 48 and summary["totals"]["calls_exact"] == 32
    )  # those that are trained
    found = reports(tmp_path)
    assert [(one["step"], one["policy"]) for one in found] == [
        (s, n) for s in (0, 1) for n in ("wolves", "town")
    ]
    assert all(one["policy_version"] == one["step"] + 1 for one in found)
    assert all(one["metrics"]["logprob_gap_max"] < 1e-4 for one in found)
    models = list(served.state.glob("models/*/*/recipe.json"))
    assert len(models) == 2  # an adapter each; the frozen one is the base
    again = trainer(folder, served, tmp_path, 3, resume=True)
    await again.afit(game, [3, 5, 8])
    found = reports(tmp_path)
    assert [(one["step"], one["policy"]) for one in found[-2:]] == [(2, "wolves"), (2, "town")]
    assert len(found) == 6
