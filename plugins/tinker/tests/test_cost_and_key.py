"""What a run on a paid service has cost is in its budget, and the service's key is nowhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker.types")
pytest.importorskip("agl_gateway")

import agl_gateway.plugin
from openai import AsyncOpenAI

import agentlightning as agl
import agl_tinker.plugin
from agentlightning import GRPO, LLM, Trainer, UsageError
from agentlightning.plugins.manager import build
from agl_tinker.machine import environment_info
from plugins.tinker.tests.running import Running

KEY, WRONG = "tml-dd4c1b0a9e7f", "tml-0f9e8d7c6b5a"
PRICE = {"prompt": 1000.0, "completion": 3000.0, "train": 5000.0}
MILLION = 1_000_000


async def guess(task: int, llm: LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        answer = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": f"{task}?"}], max_tokens=4
        )
    return float(sum(map(ord, answer.choices[0].message.content or "")) % 3)


def trainer(folder: Path, served: Running, output: Path, steps: int, **more: Any) -> Trainer:
    options = {"base_model": "tiny", "base_url": served.url, "rank": 4, "lr": 1e-2, "save_every": 1}
    return Trainer(
        algorithm=GRPO(group_size=4), policy=folder, driver="tinker", options=options, steps=steps,
        batch_size=2, output=output, run="r",
        plugins=build([agl_tinker.plugin, agl_gateway.plugin], discover=False), **more,
    )  # fmt: skip


async def formula(output: Path, reports: list[Any]) -> float:
    """The cost by docs/tinker.md, from the store's calls and the last report."""
    store = agl.open_store(output / "r" / "store.sqlite")
    calls = [
        call
        for rollout in await store.query_rollouts(limit=1000)
        for call in await store.query_calls(rollout.rollout_id, None)
    ]
    await store.close()
    used = reports[-1].metrics
    prompts = sum(len(call.prompt_ids) for call in calls)
    answers = sum(len(call.response_ids) for call in calls)
    read = (prompts + used["service/forward_tokens"]) * PRICE["prompt"]
    made = answers * PRICE["completion"] + used["service/trained_tokens"] * PRICE["train"]
    return float(read + made) / MILLION


class Reports:
    def __init__(self) -> None:
        self.found: list[Any] = []

    @agl.hookimpl
    def agl_policy_updated(self, report: Any) -> None:
        self.found.append(report)


async def test_money_is_what_the_formula_says_and_ends_the_run(
    served: Running, folder: Path, tmp_path: Path
) -> None:
    reports = Reports()
    whole = trainer(
        folder, served, tmp_path / "a", 2, callbacks=[reports], budget={"prices": {"policy": PRICE}}
    )
    told = (await whole.afit(guess, [3, 5, 8]))["budget"]
    spent = told["spent"]["money"]
    assert spent == pytest.approx(await formula(tmp_path / "a", reports.found))
    used = reports.found[-1].metrics
    training = (
        used["service/forward_tokens"] * PRICE["prompt"] + used["service/trained_tokens"] * PRICE["train"]
    )
    assert told["training"] == pytest.approx(training / MILLION) and 0 < told["training"] < spent
    # Half of the money is spent within the first step, which is made whole; what it trained is in the sum.
    short = trainer(
        folder, served, tmp_path / "b", 20, budget={"money": spent / 2, "prices": {"policy": PRICE}}
    )
    summary = await short.afit(guess, [3, 5, 8])
    assert summary["steps"] < 20 and summary["ended"].startswith("stopped by budget: money")


async def test_the_key_is_in_no_file_and_no_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of a run, one that goes on, one with a wrong key, and what the doctor asks; all logs at DEBUG."""
    caplog.set_level(logging.DEBUG)
    output = tmp_path / "runs"
    with Running(folder, tmp_path / "state", token=KEY) as served:
        monkeypatch.setenv("TINKER_API_KEY", KEY)
        options = {"base_model": "tiny", "base_url": served.url}
        assert environment_info(options)["model"] == "tiny"
        await trainer(folder, served, output, 1).afit(guess, [3, 5, 8])
        await trainer(folder, served, output, 2, resume=True).afit(guess, [3, 5, 8])
        monkeypatch.setenv("TINKER_API_KEY", WRONG)
        with pytest.raises(UsageError, match="the key is wrong") as refused:
            environment_info(options)
        with pytest.raises(UsageError, match="Tinker server") as failed:
            await trainer(folder, served, tmp_path / "wrong", 1).afit(guess, [3, 5, 8])
    said = capfd.readouterr()
    logs = "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    texts = {"stdout": said.out, "stderr": said.err, "log": logs, "doctor": str(refused.value)}
    texts |= {"error": str(failed.value)}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"store.sqlite", "metrics.jsonl", "summary.json", "position.json", "model.pt"} <= {
        path.name for path in files
    }
    assert "create_sampling_session" in logs  # the client's requests are logged, so the key could be
    for secret in (KEY, WRONG):
        found = [str(path) for path in files if secret.encode() in path.read_bytes()]
        assert found == [] and [name for name, text in texts.items() if secret in text] == []
