"""What every driver promises (``specs.Driver``, ``agl_local.peers.PeerDriver``): its tests inherit it.

A driver that is tested serves a tiny policy of bytes. The job samples one prompt 16 times a step; an answer
whose first token has an even id pays 1.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.types import LLM, Batch, Evaluation, Progress, Recipe, Row, Segment, StepReport
from agl_local.peers import PeerDriver
from agl_local.policy.folder import load_policy

PROMPT = list(b"say something: ")
RECIPE = Recipe(name="contract", group_size=16)


def ask(llm: LLM, seed: int) -> dict[str, Any]:
    """The engine's answer to 16 samples of the prompt."""
    body = {
        "model": llm.model, "prompt": PROMPT, "n": 16, "max_tokens": 3, "temperature": 1.0, "seed": seed,
        "logprobs": 1, "return_token_ids": True,
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(f"{llm.endpoint}/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return dict(json.load(answer))


class ContractJob:
    """A job of ``steps`` steps; those in ``empty`` have no rows."""

    def __init__(self, driver: Any, llm: LLM, folder: Path, steps: int, first: int = 0) -> None:
        self.driver, self.llm, self.folder, self.steps, self.first_step = driver, llm, folder, steps, first
        self.run_id, self.recipe, self.policy, self.seed, self.alone = "run-1", RECIPE, "tiny", 0, True
        self.events: list[str] = []
        self.reports: list[StepReport] = []
        self.rows: list[Row] = []
        self.empty: set[int] = set()

    def state(self) -> dict[str, Any]:
        return {"reports": self.first_step + len(self.reports)}

    async def collect(self, step: int) -> Batch:
        self.events.append(f"collect {step}")
        if step in self.empty:
            return Batch(rows=[])
        answer = await asyncio.to_thread(ask, self.llm, 100 + step)
        assert answer["policy_version"] == self.driver.version
        good = [choice["token_ids"][0] % 2 == 0 for choice in answer["choices"]]
        mean = sum(good) / len(good)
        self.rows = [self.row(f"{step}-{i}", c, good[i] - mean) for i, c in enumerate(answer["choices"])]
        return Batch(rows=self.rows, metrics={"reward_mean": mean})

    def row(self, name: str, choice: dict[str, Any], advantage: float) -> Row:
        ids, before = choice["token_ids"], len(PROMPT)
        pad, count = [0.0] * before, len(choice["token_ids"])
        return Row(
            row_id=name, rollout_id=f"ro-{name}", policy=self.policy, token_ids=[*PROMPT, *ids],
            mask=[0] * before + [1] * count, advantages=pad + [advantage] * count,
            logprobs=pad + choice["logprobs"]["token_logprobs"], weights=pad + [1 / 16 / count] * count,
            versions=[-1] * before + [self.driver.version] * count,
            segments=[Segment(f"c-{name}", before, before + count, advantage)],
        )  # fmt: skip

    def progress(self, progress: Progress) -> None: ...

    async def report(self, report: StepReport) -> None:
        assert report.policy_version == self.driver.version
        self.events.append(f"report {report.step}")
        self.reports.append(report)

    async def saved(self, folder: Path, step: int) -> None:
        assert folder.is_dir() and step in await self.driver.checkpoints(self.folder)
        self.events.append(f"saved {step}")

    async def evaluate(self, step: int) -> Evaluation | None:
        self.events.append(f"evaluate {step}")
        return None

    async def hold(self) -> None: ...
    async def release(self) -> None: ...


class DriverContract:
    """Inherit it and implement :meth:`make`."""

    def make(self, recipe: Recipe = RECIPE, **options: Any) -> PeerDriver:
        """A driver of the policy ``tiny``, not started, with a learning rate of at least 1e-3."""
        raise NotImplementedError

    async def test_steps(self, tmp_path: Path) -> None:
        driver = self.make(save_every=2)
        try:
            job = ContractJob(driver, await driver.start(), tmp_path, 3)
            assert driver.version == 0
            await driver.run(job)  # type: ignore[arg-type]
            assert driver.version == 3
            assert job.events == [
                "collect 0", "report 0", "evaluate 0",
                "collect 1", "report 1", "saved 2", "evaluate 1",
                "collect 2", "report 2", "saved 3", "evaluate 2",
            ]  # fmt: skip
            for report in job.reports:
                assert report.metrics["tokens_trained"] > 0
                assert report.metrics["logprob_gap_max"] < 1e-4
                assert report.metrics["optimizer_steps"] == 1 and not report.metrics["skipped"]
        finally:
            await driver.close()
            await driver.close()

    async def test_training_raises_what_pays(self, tmp_path: Path) -> None:
        driver = self.make(save_every=0)
        try:
            job = ContractJob(driver, await driver.start(), tmp_path, 1)
            before = await self.good(job, driver)
            await driver.run(job)  # type: ignore[arg-type]
            assert await self.good(job, driver) > before
        finally:
            await driver.close()

    async def good(self, job: ContractJob, driver: Any) -> float:
        """How likely the step's answers are, each by its advantage."""
        if not job.rows:
            await job.collect(0)
        logprobs = await driver.logprobs(job.rows)
        return sum(p * row.advantages[-1] for p, row in zip(logprobs, job.rows, strict=True))

    async def test_a_step_without_rows_changes_nothing(self, tmp_path: Path) -> None:
        driver = self.make(save_every=0)
        try:
            job = ContractJob(driver, await driver.start(), tmp_path, 2)
            job.empty = {0}
            await driver.run(job)  # type: ignore[arg-type]
            assert [report.policy_version for report in job.reports] == [0, 1]
            assert [report.metrics["skipped"] for report in job.reports] == [1.0, 0.0]
        finally:
            await driver.close()

    async def test_a_run_goes_on(self, tmp_path: Path) -> None:
        driver = self.make(save_every=1, keep_checkpoints=2)
        try:
            assert await driver.checkpoints(tmp_path) == []
            job = ContractJob(driver, await driver.start(), tmp_path, 3)
            assert await driver.resume(tmp_path) == (0, {})
            await driver.run(job)  # type: ignore[arg-type]
            trained = await driver.logprobs(job.rows)  # type: ignore[attr-defined]
        finally:
            await driver.close()
        again = self.make(save_every=1)
        try:
            assert await again.checkpoints(tmp_path) == [2, 3]
            llm = await again.start()
            assert await again.resume(tmp_path) == (3, {"reports": 3})
            assert again.version == 3
            assert await again.logprobs(job.rows) == pytest.approx(trained, abs=1e-4)  # type: ignore[attr-defined]
            more = ContractJob(again, llm, tmp_path, 4, first=3)
            await again.run(more)  # type: ignore[arg-type]
            assert [report.step for report in more.reports] == [3] and again.version == 4
        finally:
            await again.close()

    async def test_a_run_goes_back(self, tmp_path: Path) -> None:
        driver = self.make(save_every=1, keep_checkpoints=9)
        try:
            await driver.run(ContractJob(driver, await driver.start(), tmp_path, 3))  # type: ignore[arg-type]
        finally:
            await driver.close()
        again = self.make(save_every=1)
        try:
            await again.start()
            assert await again.resume(tmp_path, 1) == (1, {"reports": 1})
            assert again.version == 1
            assert await again.checkpoints(tmp_path) == [1]
        finally:
            await again.close()

    async def test_export(self, tmp_path: Path) -> None:
        driver = self.make(save_every=0)
        try:
            job = ContractJob(driver, await driver.start(), tmp_path, 2)
            await driver.run(job)  # type: ignore[arg-type]
            known = await driver.logprobs(job.rows)  # type: ignore[attr-defined]
            folder = await driver.export(tmp_path / "export")
        finally:
            await driver.close()
        model = load_policy(folder).model
        for row, logprob in zip(job.rows, known, strict=True):
            with torch.no_grad():
                every = torch.log_softmax(model(torch.tensor([list(row.token_ids)]))[0].double(), -1)
            at = [t for t, on in enumerate(row.mask) if on]
            assert sum(float(every[t - 1, row.token_ids[t]]) for t in at) == pytest.approx(logprob, abs=1e-4)

    async def test_rows_of_another_policy_are_refused(self, tmp_path: Path) -> None:
        driver = self.make(save_every=0)
        try:
            job = ContractJob(driver, await driver.start(), tmp_path, 1)
            job.policy = "another"
            with pytest.raises(ValueError, match="rows of"):
                await driver.run(job)  # type: ignore[arg-type]
        finally:
            await driver.close()

    def test_a_critic_is_refused_by_name(self) -> None:
        with pytest.raises(ValueError, match="critic"):
            self.make(Recipe(name="ppo", critic=True))

    def test_an_unknown_option_is_refused_with_the_nearest(self) -> None:
        with pytest.raises(ValueError, match=r"no option 'save_evry'.*'save_every'"):
            self.make(save_evry=1)
