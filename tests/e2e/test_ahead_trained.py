"""Steps of the local driver on rollouts made ahead: what is stale, and what the loss makes of it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from e2e.playing import equal, step_of
from e2e.test_line import Watch
from e2e.two_policies import OPTIONS, game, judge, trainer as trainer_of_two
from openai import AsyncOpenAI

import agl_local.plugin
from agentlightning import GRPO, LLM, Rollout, Trainer
from agentlightning.plugins.manager import build
from agentlightning.types import Recipe
from agl_local.driver import LocalDriver
from agl_local.training import update
from agl_local.training.loss import Loss, Terms, anchors, policy_loss
from plugins.local.tests.driver_fixtures import saved_policy

STEPS, SIZE, CAP = 3, 8, 1.5
RECIPE = GRPO(group_size=4, max_staleness=1, importance_cap=CAP)


class Seen:
    """The terms of every loss, by step; and updates that wait until the next step has been rolled out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.terms: dict[int, list[Terms]] = defaultdict(list)
        self.ended: Counter[int] = Counter()
        self.done = {step: threading.Event() for step in range(STEPS)}
        self.step = -1
        seen, updated = self, LocalDriver._update

        def wait(driver: LocalDriver, *args: Any) -> dict[str, float]:
            seen.step += 1
            assert seen.step + 1 == STEPS or seen.done[seen.step + 1].wait(300)
            return updated(driver, *args)

        def loss(terms: Terms, recipe: Recipe, corrected: bool = False) -> Loss:
            seen.terms[seen.step].append(terms)
            return policy_loss(terms, recipe, corrected)

        monkeypatch.setattr(LocalDriver, "_update", wait)
        monkeypatch.setattr(update, "policy_loss", loss)

    async def agent(self, task: int, llm: LLM, rollout: Rollout) -> float:
        """Rewarded for what it says; it tells how many of its step have ended."""
        http = httpx.AsyncClient(verify=False)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, http_client=http) as client:
            answer = await client.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": f"{task} coins"}], max_tokens=4
            )
        self.ended[step := step_of(rollout)] += 1
        if self.ended[step] == SIZE:
            self.done[step].set()
        return float(sum(map(ord, answer.choices[0].message.content or "")) % 5)


@pytest.mark.parametrize("minibatches", [1, 2])
async def test_stale_tokens_are_anchored_at_the_weights_before_the_update(
    minibatches: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, watch = Seen(monkeypatch), Watch()
    recipe = msgspec.structs.replace(RECIPE, minibatches=minibatches)
    trainer = Trainer(
        recipe,
        policy=saved_policy(tmp_path / "policy"),
        options={"threads": 1, "engine": "thread", "max_num_seqs": 16, "max_len": 256, "lr": 0.02},
        steps=STEPS,
        batch_size=2,
        async_steps=1,
        output=tmp_path,
        run="r",
        trackers=["files"],
        plugins=build([agl_local.plugin, watch], discover=False),
    )
    summary = await trainer.afit(seen.agent, list(range(9)))
    assert summary["totals"]["calls_trained"] == STEPS * SIZE
    for step, report in enumerate(watch.reports):
        m = report.metrics
        assert m["staleness_mean"] == m["staleness_max"] == bool(step)
        assert m["tokens_stale"] == (m["tokens_trained"] if step else 0) and m["tokens_trained"]
        # what was sampled by the weights that are trained agrees with them; what is older does not
        assert m.get("logprob_gap_max", 0) <= 1e-4 and ("logprob_gap_max" in m) == (step == 0)
        assert m.get("logprob_gap_stale_max", 0) > 1e-3 or step == 0
        check(seen.terms[step], stale=bool(step), several=minibatches > 1)
    assert await equal(tmp_path)


def check(found: list[Terms], *, stale: bool, several: bool) -> None:
    """Anchors and importance weights of one step's losses, in the order of its optimizer steps."""
    assert found and all(bool(terms.stale.all()) == stale for terms in found)
    first = found[0]
    for terms in found:
        assert (terms.proximal is not None) == several
        anchor, weight = anchors(terms, RECIPE)
        before = terms.logp.detach() if terms.proximal is None else terms.proximal
        if not stale:
            assert torch.equal(anchor, terms.old) and torch.equal(weight, torch.ones_like(weight))
            continue
        assert torch.equal(anchor, before)
        assert torch.allclose(weight, (before - terms.old).exp().clamp(max=CAP))
    if stale:  # the weights have moved since it was sampled, and both sides of 1 occur
        weights = torch.cat([anchors(terms, RECIPE)[1] for terms in found])
        assert weights.max() > 1.0 > weights.min() and weights.max() <= CAP
    if several:  # the weights before the update are those of its first optimizer step
        assert first.proximal is not None
        assert torch.allclose(first.logp.detach(), first.proximal, atol=1e-5)
        if len(found) > 1:
            assert found[-1].proximal is not None
            assert not torch.allclose(found[-1].logp.detach(), found[-1].proximal, atol=1e-5)


@pytest.mark.slow
async def test_several_policies_meet_as_ever(tmp_path: Path) -> None:
    """No call passes during their updates, so those of later steps stand at the gateway; none is lost."""
    watch, ended, second = Watch(), Counter[int](), asyncio.Event()

    async def patient(task: int, llm: LLM, resources: dict[str, Any], rollout: Rollout) -> float:
        """In step 0 it does not end before all of step 1 has."""
        reward = await game(task, llm, resources)
        ended[step := step_of(rollout)] += 1
        if step == 0:
            await asyncio.wait_for(second.wait(), 300)
        elif ended[1] == 8:
            second.set()
        return reward

    async with judge() as referee:
        made = trainer_of_two(
            tmp_path / "runs",
            watch,
            referee,
            algorithm=GRPO(group_size=4, credit="per_agent", max_staleness=2, importance_cap=2.0),
            options={**OPTIONS, "deterministic": False},
            async_steps=2,
            steps=4,
            evaluate_every=2,
        )
        summary = await made.afit(patient, [3, 5, 8], [1, 2])
    assert [(r.step, r.policy) for r in watch.reports] == [
        (s, n) for s in range(4) for n in ("wolves", "town")
    ]
    assert summary["totals"]["rollouts"] == 32 and summary["totals"]["calls_trained"] == 96
    for step, batch in enumerate(watch.batches):
        own = {name: [r for r in batch.rows if r.policy == name] for name in ("wolves", "town")}
        assert {row.rollout_id for row in own["wolves"]} == {row.rollout_id for row in own["town"]}
        assert len(own["wolves"]) == 8
        versions = {r.policy: r.versions for r in watch.reports if r.step == step}
        for name, rows in own.items():
            now = versions[name][name]
            assert now is not None
            assert all(0 <= now - v <= 2 for row in rows for v in row.versions if v >= 0)
    assert not any("stale" in ledger.left_out for batch in watch.batches for ledger in batch.ledgers)
    assert [r.metrics["staleness_mean"] for r in watch.reports if r.step < 2] == [0, 0, 1, 1]
