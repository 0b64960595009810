from __future__ import annotations

from dataclasses import replace

import pytest

from agl_local.network.config import ConfigError, ModelConfig, UnsupportedModel
from plugins.local.tests.engine_fixtures import small_config


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama", "mistral", "smollm3"])
def test_to_hf_and_back(arch):
    config = small_config(50, arch, tied=arch == "llama", eos=(3, 4))
    assert ModelConfig.from_hf(config.to_hf()) == config


def test_one_end_token_is_a_number_and_none_is_null():
    assert small_config(50, eos=(3,)).to_hf()["eos_token_id"] == 3
    assert small_config(50).to_hf()["eos_token_id"] is None
    assert ModelConfig.from_hf(small_config(50).to_hf()).eos_token_ids == ()


def test_rope_parameters_of_transformers_5():
    raw = small_config(50).to_hf()
    del raw["rope_theta"]
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5}
    assert ModelConfig.from_hf(raw).rope_theta == 5e5


def test_a_missing_key_is_named():
    raw = small_config(50).to_hf()
    del raw["hidden_size"]
    with pytest.raises(ConfigError, match=r"no 'hidden_size'.*qwen2"):
        ModelConfig.from_hf(raw)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "gpt2"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("mlp_bias", True),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_what_would_be_computed_differently_is_refused_by_name(key, value):
    with pytest.raises(UnsupportedModel, match=key):
        ModelConfig.from_hf({**small_config(50).to_hf(), key: value})


def test_a_window_of_mistral_is_refused_also_where_it_goes_without_saying():
    config = small_config(50, "mistral").to_hf()
    for given in (
        {**config, "sliding_window": 8},
        {k: v for k, v in config.items() if k != "sliding_window"},
    ):
        with pytest.raises(UnsupportedModel, match="sliding_window"):
            ModelConfig.from_hf(given)


def test_layers_without_rotary_embedding_are_smollm3s_every_fourth_or_those_marked():
    config = {**small_config(50, "smollm3").to_hf(), "num_hidden_layers": 8}
    assert ModelConfig.from_hf({**config, "no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 0]}).no_rope == (1, 7)
    assert ModelConfig.from_hf({**config, "no_rope_layers": None}).no_rope == (3, 7)
    with pytest.raises(UnsupportedModel, match="no_rope"):
        replace(small_config(50), no_rope=(1,))


def test_attention_bias_is_refused_where_it_reaches_the_output():
    with pytest.raises(UnsupportedModel, match="attention_bias"):
        ModelConfig.from_hf({**small_config(50, "llama").to_hf(), "attention_bias": True})


@pytest.mark.parametrize(
    "change", [{"num_kv_heads": 3}, {"head_dim": 15}, {"num_layers": 0}, {"qk_norm": True}]
)
def test_impossible_sizes_are_refused(change):
    fields = {**vars(small_config(50)), **change}
    with pytest.raises(ConfigError):
        ModelConfig(**fields)
