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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM

from agl_local.policy.folder import load_policy, save_policy
from agl_verl.inside.learning import lora
from agl_verl.inside.learning.lora import adapted, export, freeze, merged, refuse_others, whole
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
            self.engine_config = type("Config", (), {"seed": seed, "mixed_precision": None})

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


@pytest.fixture
def ranks() -> Iterator[None]:
    """A process group of this process alone, on the CPU."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_frozen_weights_in_the_precision_of_the_forward_pass_change_nothing(
    folder: Path, ranks: None
) -> None:
    """FSDP 2 with verl's mixed precision: the same gradients of A and B to the bit, and half of the bytes."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def gradients(frozen: bool) -> tuple[dict[str, torch.Tensor], int]:
        module = peft_model(folder)
        if frozen:
            freeze(module, "bf16")
        for layer in module.get_base_model().model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(module, mp_policy=policy)
        module.train()
        with torch.autocast("cpu", torch.bfloat16):
            logits = module(IDS).logits
        torch.nn.functional.cross_entropy(logits[0, :-1].float(), IDS[0, 1:]).backward()
        kept = sum(p.numel() * p.element_size() for p in module.parameters() if not p.requires_grad)
        return {name: whole(p.grad, "cpu") for name, p in module.named_parameters() if p.requires_grad}, kept

    (single, bytes_single), (half, bytes_half) = gradients(False), gradients(True)
    assert bytes_single == 2 * bytes_half
    assert any(tensor.abs().max() > 0 for tensor in single.values())
    assert all(single[name].dtype == torch.float32 for name in single)
    assert all(torch.equal(single[name], tensor) for name, tensor in half.items())


def test_sums_over_bfloat16_are_made_in_float32(folder: Path) -> None:
    trained = peft_model(folder)
    freeze(trained, "bf16")
    sums = dict(merged(trained))
    assert {tensor.dtype for tensor in sums.values()} == {torch.float32}
    layer = trained.get_base_model().model.layers[0].self_attn.q_proj
    wanted = layer.base_layer.weight.float() + lora.product(layer, "cpu")
    assert torch.equal(sums["model.layers.0.self_attn.q_proj.weight"], wanted)
    assert not torch.equal(wanted, wanted.bfloat16().float())
