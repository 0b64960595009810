"""LoRA's sums: what is served and exported computes what is trained, and frozen weights are never written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agl_local.policy.folder import load_policy, save_policy
from agl_verl.inside.learning import lora
from agl_verl.inside.learning.lora import adapted, export, merged, refuse_others
from plugins.local.tests.engine_fixtures import small_policy

IDS = torch.tensor([[3, 17, 11, 5, 24, 9]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_policy(small_policy(), tmp_path / "policy")


def peft_model(folder: Path, targets: Any = "all-linear") -> Any:
    """transformers' model with matrices that are not zero, in which peft computes on its own."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=12, target_modules=targets, bias="none")
    made = get_peft_model(model, config)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(len(name))
            )
    return made.eval()


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_the_sums_compute_what_peft_computes(folder: Path, targets: Any) -> None:
    trained = peft_model(folder, targets)
    before = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    untouched = plain(IDS).logits
    assert set(dict(merged(trained))) == set(plain.state_dict())
    plain.load_state_dict(dict(merged(trained)))
    with torch.no_grad():
        assert torch.allclose(plain(IDS).logits, trained(IDS).logits, atol=1e-5)
        assert not torch.allclose(plain(IDS).logits, untouched, atol=1e-2)
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.state_dict().items())


def test_the_export_is_loaded_by_transformers_and_by_the_engine(folder: Path) -> None:
    trained = peft_model(folder)
    export(trained, folder, writes=True)  # over the weights that it began with
    with torch.no_grad():
        wanted = trained(IDS).logits
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(IDS).logits
    assert torch.allclose(theirs, wanted, atol=1e-5)
    state = dict(merged(trained))
    for name, tensor in load_policy(folder).model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert json.loads((folder / "config.json").read_text())["model_type"]


def test_what_was_gathered_from_uneven_parts_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = peft_model(folder)
    state = dict(merged(trained))

    def padded(module: Any, device: Any) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in state.items():  # as FSDP gathers rows that its ranks do not share evenly
            yield name, torch.cat([tensor, tensor[:1]])[: len(tensor)]

    monkeypatch.setattr(lora, "merged", padded)
    export(trained, folder, writes=True)
    written = load_file(folder / "model.safetensors")
    assert written and all(torch.equal(tensor, state[name]) for name, tensor in written.items())


def test_a_rank_that_does_not_write_leaves_no_file(folder: Path) -> None:
    export(peft_model(folder), folder / "nowhere", writes=False)
    assert not (folder / "nowhere").exists()


def test_what_is_no_linear_layer_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ValueError, match="embed_tokens is a Embedding; it is for linear layers"):
        refuse_others(peft_model(folder, ["embed_tokens"]))


def test_the_first_matrices_are_a_function_of_the_seed(folder: Path) -> None:
    class Engine:
        """What of verl's engine is overridden."""

        _is_lora = True

        def __init__(self, seed: int) -> None:
            self.engine_config = type("Config", (), {"seed": seed})

        def _build_lora_module(self, module: Any) -> Any:
            return get_peft_model(module, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))

    def first(seed: int) -> torch.Tensor:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        made = adapted(Engine)(seed)._build_lora_module(model)
        return next(p for name, p in made.named_parameters() if "lora_A" in name)

    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    one, again, other = first(7), first(7), first(8)
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert torch.equal(torch.rand(3), drawn)  # nobody else's random numbers have moved
