"""Runs over a quantised base: trainer and engine compute with the same numbers, and only A and B travel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.types.sections import TrainingSection
from agentlightning.types.work import PolicyFolder
from agl_local.driver import LocalDriver
from agl_local.http.thread import EngineThread
from agl_local.network.linear import Linear
from agl_local.network.lora import Lora, adapt, adapted
from agl_local.network.model import CausalLM
from agl_local.option_values import OptionError
from agl_local.options import read_options
from agl_local.policy.folder import (
    DEQUANTISED,
    fingerprint,
    load_policy,
    load_state,
    published,
    save_policy,
    state,
)
from agl_local.policy.weights import StateError
from plugins.local.tests.driver_fixtures import saved_policy, tiny_model
from plugins.local.tests.test_driver_loop import RECIPE, FakeJob, started

OPTIONS: dict[str, Any] = {"lora": {"rank": 8, "alpha": 16}, "quantize": "nf4", "lr": 3e-2}


def matrices_of(model: CausalLM) -> set[int]:
    return {id(m.quantized) for m in model.modules() if isinstance(m, Linear) and m.quantized is not None}


@pytest.mark.parametrize("quantize", ["int8", "nf4"])
async def test_learns_and_the_engine_serves_what_the_trainer_computes(tmp_path: Path, quantize: str) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"), **{**OPTIONS, "quantize": quantize})
    try:
        job = FakeJob(driver, llm, tmp_path, steps=12)
        await driver.run(job)
        assert sum(job.rewards[:3]) / 3 < 0.8 and job.rewards[-1] > 0.9
        assert max(report.metrics["logprob_gap_max"] for report in job.reports) < 1e-4
        (engine,) = driver._engines.each if driver._engines is not None else ()
        assert isinstance(engine, EngineThread)
        trained, served = driver._loaded().model, engine.engine._model
        assert isinstance(trained, CausalLM) and isinstance(served, CausalLM)
        assert matrices_of(trained) == matrices_of(served)
        folder = await driver.export(tmp_path / "out")
        assert fingerprint(load_policy(folder).model) == job.reports[-1].params_digest
        assert json.loads((folder / "config.json").read_text())[DEQUANTISED] == quantize
    finally:
        await driver.close()
    await is_evaluated_as_it_was_trained(folder, quantize, job.reports[-1].params_digest)


async def is_evaluated_as_it_was_trained(folder: Path, quantize: str, digest: str | None) -> None:
    given = PolicyFolder(
        folder, options={**OPTIONS, "engine": "thread", "threads": 1, "quantize": quantize}, name="tiny"
    )
    driver = LocalDriver(given, RECIPE, TrainingSection(steps=0))
    await driver.start()
    try:
        assert fingerprint(driver._loaded().model) == digest
    finally:
        await driver.close()


async def test_a_process_serves_it_in_half_precision(tmp_path: Path) -> None:
    """The gap is that of a bfloat16 engine: far below what four bits change."""
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, **{**OPTIONS, "engine": "process", "dtype": "bfloat16"})
    try:
        job = FakeJob(driver, llm, tmp_path, steps=2)
        await driver.run(job)
        gaps = [report.metrics["logprob_gap_max"] for report in job.reports]
        assert 0 < max(gaps) < 0.05 and driver.version == 2
    finally:
        await driver.close()


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"quantize": "nf4"}, r"quantize: nf4 is for frozen matrices: give lora too"),
        ({"quantize": "int4", "lora": {"rank": 2}}, r"int4.*it takes int8, nf4"),
        ({"quantize": "int8", "freeze": ["*embed*"]}, r"quantize: int8 is for frozen matrices"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        read_options(given)


def test_sums_are_not_quantised_again_unsaid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = load_policy(saved_policy(tmp_path / "policy"), quantize="nf4")
    save_policy(policy, tmp_path / "sums")
    again = load_policy(tmp_path / "sums")
    assert again.model.base_kind is None and fingerprint(again.model) == fingerprint(policy.model)
    assert not caplog.messages
    load_policy(tmp_path / "sums", quantize="int8")
    assert "its matrices are sums over a base in nf4; in int8 they are other matrices" in caplog.text


def test_only_a_and_b_are_published_and_taken() -> None:
    model, other = tiny_model(), tiny_model()
    for seed, network in enumerate((model, other)):
        network.quantize("int8")
        adapt(network, Lora(rank=2), seed=seed)
    with torch.no_grad():
        for layer in adapted(model).values():
            layer.lora_B.normal_()
    sent = published(model)
    assert {name.rpartition(".")[2] for name in sent} == {"lora_A", "lora_B"}
    assert state(model).keys() == state(tiny_model()).keys()
    load_state(other, sent)
    assert fingerprint(other) == fingerprint(model)
    with pytest.raises(StateError, match=r"missing model\.layers\.0\.self_attn\.q_proj\.lora_A"):
        load_state(other, state(tiny_model()))
