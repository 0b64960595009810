"""The formulas of a network's size against real networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agl_local.network.config import ModelConfig
from agl_local.network.memory import (
    STATES,
    cached_numbers,
    layer_matrices,
    lora_count,
    matrix_numbers,
    parameter_count,
    run_bytes,
    saved_numbers,
)
from agl_local.network.model import CausalLM, rope_tables
from agl_local.policy.folder import init_model
from agl_local.training.forward import hidden_states
from agl_local.training.pack import pack
from bench.memory import ALLOWED, SHAPE, measured, plans, saved

SMOLLM2 = ModelConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    tied=True,
    qkv_bias=False,
    arch="llama",
)


def small(**changes: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 50,
        "qkv_bias": False,
        "arch": "llama",
    }
    return ModelConfig(**sizes | changes)


CONFIGS = {
    "tied": small(tied=True),
    "untied": small(),
    "qwen2": small(arch="qwen2", qkv_bias=True, num_kv_heads=3),
    "qwen3": small(arch="qwen3", qk_norm=True, tied=True, head_dim=32),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_parameters_are_those_of_the_network(config: ModelConfig) -> None:
    with torch.device("meta"):
        model = CausalLM(config)
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())
    matrices = [p for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2]
    assert matrix_numbers(config) == sum(p.numel() for p in matrices)
    shapes = sorted((p.shape[1], p.shape[0]) for p in matrices)
    assert shapes == sorted(layer_matrices(config) * config.num_layers)


def test_the_network_of_135_million_parameters() -> None:
    with torch.device("meta"):
        model = CausalLM(SMOLLM2)
    assert parameter_count(SMOLLM2) == sum(p.numel() for p in model.parameters()) == 134_515_008


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_token_has_that_many_keys_and_values(config: ModelConfig) -> None:
    model, hidden = init_model(config, 0), torch.zeros(1, 1, config.hidden_size)
    rope = rope_tables(torch.zeros(1, 1), config.head_dim, config.rope_theta, torch.float32)
    keys_and_values = [layer.self_attn.project(hidden, rope)[1:] for layer in model.model.layers]
    assert cached_numbers(config) == sum(t.numel() for pair in keys_and_values for t in pair)


@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"hidden_size": 192},
        {"intermediate_size": 512},
        {"num_heads": 12},
        {"num_kv_heads": 6},
        {"head_dim": 32},
    ],
    ids=str,
)
def test_a_layer_keeps_that_many_numbers_a_position(name: str, change: dict[str, int]) -> None:
    """The difference of two layers and one, and of two lengths: neither embedding nor rotation counts."""

    def kept(layers: int, length: int) -> int:
        return _kept(small(tied=name == "tied", num_layers=layers, **change), length)

    found = (kept(2, 128) - kept(1, 128) - kept(2, 64) + kept(1, 64)) / 64
    config = small(num_layers=1, **change)
    assert found == 4 * saved_numbers(config)
    assert saved_numbers(small(num_layers=7, **change)) == 7 * saved_numbers(config)


def test_a_trie_keeps_that_much_but_for_a_number_a_head() -> None:
    """Its attention is computed again from queries, keys and values alone."""

    def kept(layers: int, length: int) -> int:
        return _kept(small(num_layers=layers), length, trie=True)

    found = (kept(2, 128) - kept(1, 128) - kept(2, 64) + kept(1, 64)) / 64
    config = small(num_layers=1)
    assert found == 4 * (saved_numbers(config) - config.num_heads)


def test_checkpointing_keeps_the_layers_inputs_and_one_layer() -> None:
    config, one = small(num_layers=5), small(num_layers=1)
    assert saved_numbers(config, checkpointed=True) == 5 * config.hidden_size + saved_numbers(one)


@pytest.mark.parametrize("number", [0, 7, 11])
def test_a_run_takes_what_the_formula_says(number: int, tmp_path: Path) -> None:
    """Three of the twelve combinations of ``make memory``: all weights, LoRA, and LoRA over four bits."""
    plan = plans()[number]
    assert measured(plan, saved(tmp_path)) == pytest.approx(run_bytes(SHAPE, plan), rel=ALLOWED)


@pytest.mark.parametrize("number", [6, 9])
def test_policies_over_one_base_take_what_the_formula_says(number: int, tmp_path: Path) -> None:
    """Three adapters over one base, beside an engine in bfloat16 and over int8. A further one adds its states
    and its cache alone.
    """
    plan = replace(plans()[number], policies=3)
    assert measured(plan, saved(tmp_path)) == pytest.approx(run_bytes(SHAPE, plan), rel=ALLOWED)
    more = run_bytes(SHAPE, replace(plan, policies=4)) - run_bytes(SHAPE, plan)
    small, cache = lora_count(SHAPE, plan.rank or 0), plan.held * cached_numbers(SHAPE)
    assert more == STATES * small + (2 if plan.base == "bfloat16" else 4) * (small + cache)


def test_lora_counts_two_thin_matrices_a_matrix() -> None:
    config = small(num_layers=1)
    expected = sum(3 * inputs + outputs * 3 for inputs, outputs in layer_matrices(config))
    assert lora_count(config, rank=3) == expected


def _kept(config: ModelConfig, length: int, trie: bool = False) -> int:
    """Bytes of the tensors that autograd keeps of one forward pass, parameters left out."""
    model = init_model(config, 0)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        at = tensor.untyped_storage().data_ptr()
        if at not in own:
            found[at] = tensor  # alive, so that no other tensor gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if trie:
            packed = pack([[0] * (length + 1)], [range(1, length + 1)], share=True)
            hidden = hidden_states(model, packed.inputs)
        else:
            hidden = model.hidden(torch.zeros(1, length, dtype=torch.long))
    assert hidden.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values())
