"""LoRA: the gradient of A and B, what the engine is served, and a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.types import Recipe, Row, UsageError
from agl_local.network.lora import Lora, LoraError, adapt, adapted, starting_point, targets_of
from agl_local.network.model import CausalLM, LanguageModel
from agl_local.network.quantized import Kind
from agl_local.option_values import OptionError
from agl_local.options import read_options
from agl_local.policy.adapters import add_adapter, load_adapters, save_adapters
from agl_local.policy.checkpoint import latest
from agl_local.policy.fetch import fetch
from agl_local.policy.folder import fingerprint, load_policy, load_state, save_policy, state
from agl_local.policy.weights import StateError
from agl_local.training.freeze import trained_values
from agl_local.training.loss import Loss, Terms, policy_loss
from agl_local.training.optim import StepResult
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import make_row, saved_policy, tiny_config, tiny_model, tiny_policy
from plugins.local.tests.test_driver_loop import FakeJob, started
from plugins.local.tests.test_driver_update import double

LORA = Lora(rank=4, alpha=8)


def with_adapters(seed: int = 0, lora: Lora = LORA, kind: Kind | None = None) -> CausalLM:
    """A network whose A and B are both far from 0, its matrices in ``kind``."""
    model = tiny_model()
    if kind is not None:
        model.quantize(kind)
    adapt(model, lora, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in adapted(model).values():
            layer.lora_B.normal_(0.0, 0.2, generator=generator)
    return model


def merged(model: CausalLM) -> CausalLM:
    plain = CausalLM(model.config)
    load_state(plain, state(model))
    return plain.eval()


def rows_of(model: CausalLM, count: int = 4) -> list[Row]:
    """Two prompts with two answers each."""
    rows = []
    for i in range(count):
        ids = [*([3, 1, 4, 1, 5, 9] if i % 2 else [2, 7, 1, 8]), *range(10 + i, 16 + 2 * i)]
        rows.append(make_row(model, ids, [(6, len(ids))], [1.0 - i], name=f"r{i}"))
    return rows


# -------------------------------------------------------------------------------------------- the network
def test_an_adapted_network_begins_as_the_one_it_was_and_trains_a_and_b_alone() -> None:
    plain, model = tiny_model(), tiny_model()
    adapt(model, LORA, seed=1)
    ids = torch.arange(12)[None]
    assert torch.equal(model(ids), plain(ids))
    assert fingerprint(model) == fingerprint(plain) and list(state(model)) == list(state(plain))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in trained} == {"lora_A", "lora_B"} and len(trained) == 2 * 2 * 7
    sizes = [sum(layer.weight.shape) for layer in adapted(model).values()]
    assert trained_values(model) == LORA.rank * sum(sizes)


def test_the_seed_decides_the_first_matrices() -> None:
    one, same, other = (with_adapters(seed) for seed in (1, 1, 2))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def test_the_sums_compute_what_the_adapters_compute() -> None:
    model = with_adapters()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert (merged(model)(ids) - model(ids)).abs().max() < 1e-4
        assert (tiny_model()(ids) - model(ids)).abs().max() > 0.1
        for name, layer in adapted(model).items():
            by_hand = layer.weight.double() + 2.0 * layer.lora_B.double() @ layer.lora_A.double()
            assert (state(model)[f"{name}.weight"] - by_hand).abs().max() < 1e-6


@pytest.mark.parametrize("share", [True, False])
def test_the_gradient_of_a_and_b_is_that_of_the_loss(share: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Central differences of the step's loss in float64, with and without shared prompts."""
    rows = rows_of(merged(with_adapters()))
    model = double(tiny_model(), monkeypatch)
    adapt(model, LORA, seed=0)
    copied = with_adapters()
    model.load_state_dict({name: value.double() for name, value in copied.state_dict().items()})
    found: dict[str, torch.Tensor] = {}
    losses: list[float] = []

    def spy(_model: LanguageModel, *_: object) -> object:
        found.update({n: p.grad.clone() for n, p in _model.named_parameters() if p.grad is not None})
        _model.zero_grad()
        return StepResult(1.0, True)

    def noted(terms: Terms, recipe: Recipe, corrected: bool = False) -> Loss:
        loss = policy_loss(terms, recipe, corrected)
        losses.append(float(loss.total.detach()))  # the metric is in float32
        return loss

    monkeypatch.setattr("agl_local.training.update.clip_and_step", spy)
    monkeypatch.setattr("agl_local.training.update.policy_loss", noted)
    updater = Updater(model, Recipe(name="r", entropy=0.1), share=share)
    updater.update(rows, version=0)
    gradient = dict(found)
    assert set(gradient) == {n for n, p in model.named_parameters() if p.requires_grad}

    def loss_with(parameter: torch.Tensor, place: tuple[int, int], change: float) -> float:
        parameter.data[place] += change
        updater.update(rows, version=0)
        parameter.data[place] -= change
        return losses[-1]

    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "layers.1" in name:
            place = (1, 2)
            slope = (loss_with(parameter, place, 1e-5) - loss_with(parameter, place, -1e-5)) / 2e-5
            assert slope == pytest.approx(float(gradient[name][place]), rel=1e-5, abs=1e-9), name


def test_the_reference_is_the_network_without_adapters_and_has_no_copy_of_the_weights() -> None:
    model = with_adapters()
    before = starting_point(model)
    assert fingerprint(before) == fingerprint(tiny_model()) and not adapted(before)
    mine = {p.data_ptr() for p in model.parameters()}
    assert all(p.data_ptr() in mine for p in before.parameters())
    updater = Updater(model, Recipe(name="r", kl=0.1), reference=before, lr=1e-2)
    metrics = updater.update(rows_of(merged(model)), version=0)
    assert metrics["kl_reference"] > 0.01 and fingerprint(before) == fingerprint(tiny_model())


@pytest.mark.parametrize(
    ("targets", "count"), [("all-linear", 14), (("q_proj", "v_proj"), 4), ("down_proj", 2)]
)
def test_targets(targets: Any, count: int) -> None:
    assert len(targets_of(tiny_model(), Lora(rank=1, targets=targets))) == count


def test_what_cannot_be_adapted_is_named() -> None:
    with pytest.raises(LoraError, match=r"'lm_head', 'query': the blocks have no such.*down_proj, gate_proj"):
        targets_of(tiny_model(), Lora(rank=1, targets=("q_proj", "lm_head", "query")))
    bare = tiny_model()
    bare.model.layers = torch.nn.ModuleList()
    with pytest.raises(LoraError, match="have no linear layers"):
        targets_of(bare, LORA)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"lora": {"rank": 0}}, "rank 0 must be at least 1"),
        ({"lora": {"rank": 2, "targets": []}}, "name a layer"),
        ({"lora": {"rank": 2, "dropout": 0.1}}, "dropout"),
        ({"lora": {"rank": 2}, "freeze": ["*embed*"]}, "leave freeze out"),
    ],
)
def test_options(given: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        read_options(given)


# ------------------------------------------------------------------------------------------------ on disk
def test_the_format_of_peft(tmp_path: Path) -> None:
    model = with_adapters()
    save_adapters(model, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8)
    assert config["target_modules"] == sorted({name.rpartition(".")[2] for name in adapted(model)})
    modes = {path.stat().st_mode for path in (tmp_path / "adapter").iterdir()}
    assert len(modes) == 1
    other = tiny_model()
    adapt(other, LORA, seed=9)
    load_adapters(other, tmp_path / "adapter")
    assert fingerprint(other) == fingerprint(model)
    save_adapters(tiny_model(), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_adapter_that_names_no_layers_belongs_to_those_that_it_has_matrices_of(tmp_path: Path) -> None:
    """As skyrl-tx writes it: ``target_modules`` is null."""
    policy = tiny_policy()
    adapt(policy.model, Lora(rank=2, targets=("q_proj", "up_proj")), 3)
    with torch.no_grad():
        for layer in adapted(policy.model).values():
            layer.lora_B.normal_()
    save_adapters(policy.model, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "target_modules": None}))
    other = tiny_policy()
    add_adapter(other, tmp_path, fingerprint(other.model))
    assert adapted(other.model).keys() == adapted(policy.model).keys()
    assert fingerprint(other.model) == fingerprint(policy.model)


def test_adapters_of_another_shape_change_nothing(tmp_path: Path) -> None:
    save_adapters(with_adapters(), tmp_path / "adapter")
    other = with_adapters(lora=Lora(rank=2))
    before = fingerprint(other)
    with pytest.raises(StateError, match="another rank"):
        load_adapters(other, tmp_path / "adapter")
    with pytest.raises(StateError, match="holds no adapters"):
        load_adapters(other, tmp_path)
    assert fingerprint(other) == before
    with pytest.raises(StateError, match="with adapters: they are sums"):
        load_state(other, state(tiny_model()))


def test_a_saved_policy_has_the_sums(tmp_path: Path) -> None:
    policy = tiny_policy()
    adapt(policy.model, LORA, seed=0)
    with torch.no_grad():
        for layer in adapted(policy.model).values():
            layer.lora_B.fill_(0.1)
    folder = save_policy(policy, tmp_path)
    assert fingerprint(load_policy(folder).model) == fingerprint(policy.model)
    assert policy.config == tiny_config()


# --------------------------------------------------------------------------------------------- the driver
OPTIONS: dict[str, Any] = {"lora": {"rank": 8, "alpha": 16}, "lr": 3e-2}


async def test_learns_and_the_engine_serves_what_the_trainer_computes(tmp_path: Path) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"), **OPTIONS)
    try:
        job = FakeJob(driver, llm, tmp_path, steps=12)
        await driver.run(job)
        assert sum(job.rewards[:3]) / 3 < 0.8 and job.rewards[-1] > 0.9
        assert max(report.metrics["logprob_gap_max"] for report in job.reports) < 1e-4
        folder = await driver.export(tmp_path / "out")
        assert fingerprint(load_policy(folder).model) == job.reports[-1].params_digest
        start = load_policy(tmp_path / "policy").model
        assert torch.equal(
            state(start)["model.norm.weight"], state(load_policy(folder).model)["model.norm.weight"]
        )
    finally:
        await driver.close()


@pytest.mark.parametrize(
    "options",
    [OPTIONS, {**OPTIONS, "quantize": "nf4"}, {"freeze": ["*embed_tokens*", "*layers.0*"]}],
    ids=["lora", "quantised", "freeze"],
)
async def test_goes_on_bit_for_bit(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = saved_policy(tmp_path / "policy")
    options = {**options, "save_every": 2, "deterministic": True}
    driver, llm = await started(policy, **options)
    straight = FakeJob(driver, llm, tmp_path / "a", steps=4)
    await driver.run(straight)
    await driver.close()
    driver, llm = await started(policy, **options)
    await driver.run(FakeJob(driver, llm, tmp_path / "b", steps=2))
    await driver.close()
    driver, llm = await started(policy, **options)
    try:
        assert (await driver.resume(tmp_path / "b"))[0] == 2
        rest = FakeJob(driver, llm, tmp_path / "b", steps=4, first=2)
        await driver.run(rest)
    finally:
        await driver.close()
    assert [(r.rows_digest, r.params_digest) for r in rest.reports] == [
        (r.rows_digest, r.params_digest) for r in straight.reports[2:]
    ]
    found = latest(tmp_path / "b" / "checkpoints")
    assert found is not None
    digest = fingerprint(load_policy(found.folder / "policy").model)
    assert digest == rest.reports[-1].params_digest
    if "lora" in options:  # the adapter names its base, so that it can be fetched: the sum is the same policy
        monkeypatch.setenv("AGL_CACHE", str(tmp_path / "cache"))
        sums, merged = state(load_policy(found.folder / "policy").model), fetch(found.folder / "adapter").path
        for name, tensor in state(load_policy(merged).model).items():
            assert torch.allclose(tensor, sums[name], atol=1e-6), name
    trainer = torch.load(found.folder / "trainer.pt", weights_only=True)["trainer"]
    names = [name for name, p in driver._loaded().model.named_parameters() if p.requires_grad]
    assert 0 < len(trainer["optimizer"]["state"]) == len(names)


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ({}, {"freeze": ["*embed*"]}, r"freeze has changed: model\.embed_tokens\.weight frozen now"),
        ({"freeze": ["*norm*"]}, {"freeze": ["model.norm*"]}, r"layernorm\.weight and more frozen then"),
        ({}, OPTIONS, r"lora was None and is \{'rank': 8"),
        (OPTIONS, {}, r"lora was \{'rank': 8.*and is None"),
        (OPTIONS, {"lora": {"rank": 8, "alpha": 17}}, "'alpha': 17"),
        (
            {**OPTIONS, "quantize": "nf4"},
            {**OPTIONS, "quantize": "int8"},
            r"backend\.options\.quantize was nf4 and is int8",
        ),
    ],
)
async def test_a_run_that_trains_something_else_does_not_go_on(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], match: str
) -> None:
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, save_every=1, **before)
    await driver.run(FakeJob(driver, llm, tmp_path, steps=1))
    await driver.close()
    driver, _ = await started(policy, save_every=1, **after)
    try:
        with pytest.raises(UsageError, match=match):
            await driver.resume(tmp_path)
    finally:
        await driver.close()


async def test_adapters_beside_other_weights_do_not_go_on(tmp_path: Path) -> None:
    driver, llm = await started(saved_policy(tmp_path / "policy"), save_every=1, **OPTIONS)
    await driver.run(FakeJob(driver, llm, tmp_path, steps=1))
    await driver.close()
    driver, _ = await started(saved_policy(tmp_path / "other", seed=7), save_every=1, **OPTIONS)
    try:
        with pytest.raises(UsageError, match=r"other weights than those of backend\.policy"):
            await driver.resume(tmp_path)
    finally:
        await driver.close()


async def test_frozen_parameters_stay_as_they_are(tmp_path: Path) -> None:
    policy = saved_policy(tmp_path / "policy")
    driver, llm = await started(policy, freeze=["*embed_tokens*"])
    try:
        await driver.run(FakeJob(driver, llm, tmp_path, steps=2))
        start, now = state(load_policy(policy).model), state(driver._loaded().model)
        same = {name for name in start if torch.equal(start[name], now[name])}
        assert same == {"model.embed_tokens.weight"}
        assert driver._updates is not None and len(driver._updates.optimizer.state) == len(start) - 1
    finally:
        await driver.close()


async def test_a_pattern_without_a_match_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"freeze: '\*embedding\*' matches no parameter; names are such as"):
        await started(saved_policy(tmp_path / "policy"), freeze=["*embedding*"])
