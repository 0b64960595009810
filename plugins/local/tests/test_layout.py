from __future__ import annotations

import copy

import pytest
import safetensors.torch
import torch
from torch import Tensor

from agl_local.network.layout import Layout, adjacent, read_block, realise
from agl_local.policy.folder import fingerprint, save_policy, state
from plugins.local.tests.engine_fixtures import small_policy


def block_of(tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    layout = Layout({name: tensor.shape for name, tensor in tensors.items()}, dtype)
    block = torch.empty(layout.size, dtype=torch.uint8)
    layout.fill(block, tensors)
    return block


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_is_a_safetensors_file(dtype):
    tensors = state(small_policy(tied=True).model)
    block = block_of(tensors, dtype)
    read = safetensors.torch.load(block.numpy().tobytes())
    assert read.keys() == tensors.keys() == read_block(block).keys()
    for name, mine in read_block(block).items():
        assert torch.equal(mine, tensors[name].to(dtype)) and torch.equal(mine, read[name])
        assert mine.untyped_storage().data_ptr() == block.data_ptr()


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
def test_what_a_step_multiplies_at_once_is_one_matrix_without_a_copy(arch):
    policy = small_policy(arch=arch)
    model = realise(policy.model, torch.float32, torch.device("cpu"))
    (memory,) = {p.untyped_storage().data_ptr() for p in model.parameters()}
    model.pack()
    for layer in model.model.layers:
        weight, bias = layer.self_attn.packed.weight, layer.self_attn.packed.bias
        gate_up = layer.mlp.packed.weight
        assert weight.untyped_storage().data_ptr() == memory == gate_up.untyped_storage().data_ptr()
        parts = (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        assert torch.equal(weight, torch.cat([part.weight for part in parts]))
        assert (bias is None) == (arch != "qwen2")
        assert bias is None or torch.equal(bias, torch.cat([part.bias for part in parts]))
    assert fingerprint(model) == fingerprint(policy.model)
    assert {p.untyped_storage().data_ptr() for p in model.parameters()} == {memory}


@torch.no_grad()
def test_a_packed_network_sees_changed_weights(tmp_path):
    model = small_policy().model
    model.pack()
    ids, positions = torch.tensor([[5, 6, 7]]), torch.arange(3)[None]
    for change in (
        lambda: model.model.layers[0].self_attn.k_proj.weight.mul_(2),
        lambda: model.model.layers[1].mlp.up_proj.weight.mul_(-1),
        lambda: model.to(torch.float64).to(torch.float32),
    ):
        change()
        for same in (model, copy.deepcopy(model)):
            same.model.layers[0].self_attn.v_proj.weight.mul_(3)
            got = same.step(ids, positions, same.new_cache(1, 8), torch.tensor([0]))
            assert torch.allclose(got, same(ids), atol=1e-5)
    policy = small_policy()
    policy.model.pack()
    save_policy(policy, tmp_path)  # parameters that share memory are no obstacle


def test_a_tied_network_stays_tied():
    model = realise(small_policy(tied=True).model, torch.float32, torch.device("cpu"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_only_neighbours_are_joined():
    whole = torch.arange(12.0).view(6, 2)
    assert torch.equal(adjacent((whole[:2], whole[2:5])), whole[:5])
    assert adjacent((whole[:2], whole[3:])) is None and adjacent((whole[2:], whole[:2])) is None
    assert (
        adjacent((whole[:2], whole[2:].clone())) is None and adjacent((whole[:2, :1], whole[2:, :1])) is None
    )


@pytest.mark.parametrize(
    "change",
    [lambda b: b[:4], lambda b: b[: b.numel() // 2], lambda b: b[64:], lambda b: b[8:], lambda b: b * 0],
    ids=["head", "half", "shifted", "no length", "zeros"],
)
def test_other_bytes_are_refused(change):
    block = change(block_of(state(small_policy().model)))
    with pytest.raises(ValueError, match=rf"not safetensors \({block.numel()} bytes\)"):
        read_block(block)
