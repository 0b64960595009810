"""A family without an own forward is trained through transformers', by the same code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.types import Recipe, UsageError
from agentlightning.types.work import PolicyFolder
from agl_local.driver import LocalDriver
from agl_local.policy.checkpoint import latest, load_checkpoint, save_checkpoint
from agl_local.policy.export import export_policy
from agl_local.policy.folder import Policy, fingerprint, load_policy
from agl_local.training.score import logprob_gap
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import make_row, tiny_tokenizer
from plugins.local.tests.family_fixtures import saved_network
from plugins.local.tests.test_driver_loop import RECIPE, FakeJob, started

transformers = pytest.importorskip("transformers")


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    config = transformers.GPTNeoXConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        hidden_dropout=0.1,
    )
    torch.manual_seed(0)
    folder = tmp_path / "neox"
    transformers.GPTNeoXForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save(folder)
    return load_policy(folder)


def test_trains_saves_and_exports(policy: Policy, tmp_path: Path) -> None:
    model = policy.model
    rows = [make_row(model, [5, 9, 7, 20 + i, 30, 4], [(3, 6)], [(-1.0) ** i], name=str(i)) for i in range(4)]  # type: ignore[arg-type]
    assert logprob_gap(model, rows, micro_tokens=8).max < 1e-5  # dropout is off, padding does not matter
    updater = Updater(model, Recipe(name="r"), lr=1e-3)
    before = fingerprint(model)
    metrics = updater.update(rows, version=0)
    assert metrics["optimizer_steps"] == 1 and fingerprint(model) != before
    save_checkpoint(tmp_path / "c", step=1, version=1, policy=policy, trainer=updater.state_dict())
    after = fingerprint(model)
    updater.update(rows, version=0)
    found = latest(tmp_path / "c")
    assert found is not None
    updater.load_state_dict(load_checkpoint(found, policy))
    assert fingerprint(model) == after
    out = export_policy(policy, tmp_path / "out")
    other = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    ids = torch.tensor([[5, 9, 7, 20]])
    with torch.no_grad():
        assert torch.equal(other(ids).logits, model(ids))


def test_layers_that_cannot_be_computed_again_are_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="TransformersLM cannot compute its layers again"):
        Updater(policy.model, Recipe(name="r"), recompute=True)


def test_a_backward_pass_in_another_precision_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="TransformersLM has one precision in both passes"):
        Updater(policy.model, Recipe(name="r"), backward_dtype=torch.bfloat16)


@pytest.mark.parametrize("option", [{"activation_checkpointing": True}, {"backward_dtype": "bfloat16"}])
async def test_options_of_the_own_forward_are_refused_before_an_engine_starts(
    policy: Policy, option: dict[str, Any]
) -> None:
    assert policy.path is not None
    driver = LocalDriver(PolicyFolder(policy.path, options={"threads": 1, **option}, name="tiny"), RECIPE)
    try:
        with pytest.raises(UsageError, match=f"neox: {next(iter(option))}: .*TransformersLM.*leave it out"):
            await driver.start()
        assert driver._engines is None
    finally:
        await driver.close()


async def test_a_run_by_lora_of_a_family_with_a_state(tmp_path: Path) -> None:
    """A group of one prompt takes the convolutions' state after it, and engine and trainer agree on it."""
    start = saved_network("LFM2", tmp_path / "lfm2")
    tiny_tokenizer().save(start)
    driver, llm = await started(start, lora={"rank": 4}, lr=3e-2)
    try:
        job = FakeJob(driver, llm, tmp_path, steps=3)
        await driver.run(job)
        assert max(report.metrics["logprob_gap_max"] for report in job.reports) < 1e-4
        folder = await driver.export(tmp_path / "out")
        assert fingerprint(load_policy(folder).model) == job.reports[-1].params_digest
        assert fingerprint(load_policy(start).model) != job.reports[-1].params_digest
    finally:
        await driver.close()
