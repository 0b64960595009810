"""Tiny networks of published families, each from its own configuration class of transformers.

Sizes are small and layer kinds real: windows of 8 tokens, short convolutions, gated delta nets, layers
without rotary embedding, mostly in the order that the configuration class gives them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from plugins.local.tests.engine_fixtures import trained_tokenizer

TOKENIZER = trained_tokenizer()
VOCAB = TOKENIZER.vocab_size
WINDOW = 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": TOKENIZER.eos_ids[0],
    "bos_token_id": 0,
    "pad_token_id": 0,
}
_LINEAR = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SWA = {"sliding_window": WINDOW}
_DIM = {"head_dim": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma 2": ("Gemma2Config", {**_DIM, **_SWA, "final_logit_softcapping": 5.0}),
    "Gemma 3": ("Gemma3TextConfig", {**_DIM, **_SWA, "num_hidden_layers": 6}),
    "Gemma 4": (
        "Gemma4TextConfig",
        {
            **_DIM, **_SWA, "layer_types": ["sliding_attention", "full_attention"] * 2, "global_head_dim": 24,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 2,
        },
    ),
    "Gemma 3n": (
        "Gemma3nTextConfig",
        {
            **_DIM, **_SWA, "num_hidden_layers": 10, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
            "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 2,
        },
    ),
    "GLM-4": ("GlmConfig", _DIM),
    "GLM-4 0414": ("Glm4Config", _DIM),
    "gpt-oss": ("GptOssConfig", {**_DIM, **_SWA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "Granite 3": (
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.5,
            "attention_multiplier": 0.3,
        },
    ),
    "Granite 4 (Mamba)": (
        "GraniteMoeHybridConfig",
        {
            "embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.5,
            "attention_multiplier": 0.3, "num_local_experts": 0, "shared_intermediate_size": 48,
            "layer_types": ["mamba", "attention", "mamba", "attention"], "mamba_n_heads": 4,
            "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 16,
        },
    ),
    "LFM2": (
        "Lfm2Config",
        {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "LFM3": ("Lfm3Config", {**_DIM, **_SWA}),
    "Ministral 8B": ("MinistralConfig", {**_DIM, **_SWA}),
    "Ministral 3": ("Ministral3Config", _DIM),
    "Mistral": ("MistralConfig", {**_DIM, "sliding_window": None}),
    "Mistral 7B v0.1": ("MistralConfig", _SWA),
    "OLMo 2": ("Olmo2Config", {}),
    "OLMo 3": ("Olmo3Config", _SWA),
    "OLMo hybrid": ("OlmoHybridConfig", {}),
    "Phi-3": ("Phi3Config", {}),
    "Phi-4-mini": (
        "Phi3Config",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
            "tie_word_embeddings": True,
        },
    ),
    "Llama, SmolLM2": ("LlamaConfig", {"tie_word_embeddings": True}),
    "Qwen2, Qwen2.5": ("Qwen2Config", {}),
    "Qwen3": ("Qwen3Config", _DIM),
    "Qwen3 MoE": ("Qwen3MoeConfig", {**_DIM, **_EXPERTS}),
    "Qwen3-Next": ("Qwen3NextConfig", {**_DIM, **_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 16}),
    "Qwen3.5": ("Qwen3_5TextConfig", {**_DIM, **_LINEAR}),
    "SmolLM3": ("SmolLM3Config", {}),
    "Cohere 2": ("Cohere2Config", {**_SWA, "logit_scale": 0.25}),
    "EXAONE 4": ("Exaone4Config", {**_SWA}),
    "Seed-OSS": ("SeedOssConfig", _DIM),
    "Falcon-H1": (
        "FalconH1Config",
        {
            "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8,
            "mamba_chunk_size": 16, "lm_head_multiplier": 0.5, "head_dim": 8,
        },
    ),
    "HunYuan": ("HunYuanDenseV1Config", _DIM),
    "Apertus": ("ApertusConfig", {}),
}  # fmt: skip
_PATCHES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Gemma 3 with images": ("Gemma3Config", "Gemma 3", {**_PATCHES, "image_size": 28, "patch_size": 14}),
    "Ministral 3 with images": (
        "Mistral3Config",
        "Ministral 3",
        {**_PATCHES, "model_type": "pixtral", "image_size": 28, "patch_size": 14},
    ),
    "Qwen3.5 with images": (
        "Qwen3_5Config",
        "Qwen3.5",
        {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32},
    ),
}
"""Models that take images too: their configuration, the family of their text, and what looks at images."""


def _config(family: str) -> Any:
    if family in PICTURES:
        name, text, vision = PICTURES[family]
        inner = _config(text).to_dict()
        return getattr(transformers, name)(text_config=inner, vision_config=vision, tie_word_embeddings=False)
    name, own = FAMILIES[family]
    return getattr(transformers, name)(**{**SIZES, **own})


def auto(config: Any) -> Any:
    """The class of transformers that loads a model of ``config`` to write text."""
    causal = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModelForImageTextToText


def network(family: str, seed: int = 0) -> Any:
    """A random network of ``family`` whose answers differ with the prompt."""
    torch.set_num_threads(1)
    config = _config(family)
    torch.manual_seed(seed)
    kind = transformers.AutoModelForImageTextToText if family in PICTURES else auto(config)
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model


def reread(folder: Path) -> Any:
    """The network in ``folder`` by transformers alone, in float32."""
    kind = auto(transformers.AutoConfig.from_pretrained(folder))
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def saved_network(family: str, folder: Path, seed: int = 0) -> Path:
    network(family, seed).save_pretrained(folder)
    TOKENIZER.save(folder)
    return folder
