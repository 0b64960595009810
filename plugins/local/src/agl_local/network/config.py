"""The shape of a policy's network, read from and written to a Hugging Face ``config.json``.

Invariant: a configuration that this package would compute differently from transformers is refused by name
(scaled rotary embeddings, sliding windows, other activations …), never approximated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agentlightning.types import UsageError
from agl_local.network.shape import NetworkShape

Arch = Literal["qwen2", "qwen3", "llama", "mistral", "smollm3"]

_CLASSES: dict[str, str] = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
OWN = "Qwen2, Qwen3, Llama, Mistral and SmolLM3 families"
"""What the own forward computes, in words."""
ELSEWHERE: tuple[Arch, ...] = ("llama", "qwen2", "qwen3")
"""Families of which llama.cpp and vLLM were seen to compute what is computed here."""
_POSITIONS = {"llama": 2048, "mistral": 131072}
_THETA = {"smollm3": 2e6}


ADAPTER = "adapter_config.json"
"""The file that says that a folder holds matrices of LoRA, and what they belong to."""


class ConfigError(ValueError):
    """A config.json lacks a key or holds a value that cannot be used; the text names both."""


class MissingFile(UsageError, FileNotFoundError):
    """A policy folder that is not there, or lacks a file it needs."""


class UnsupportedModel(ConfigError):
    """A sound configuration of a family or feature that the own forward does not compute."""


@dataclass(frozen=True)
class ModelConfig(NetworkShape):
    """Sizes and switches of a decoder-only network of one of the families :data:`OWN`.

    ``max_positions`` is in tokens; ``qkv_bias`` is Qwen2's, ``qk_norm`` Qwen3's. ``no_rope``: numbers of the
    layers without rotary embedding, SmolLM3's. Mistral's is Llama's network where it has no window.
    """

    qkv_bias: bool = True
    rope_theta: float = 10000.0
    rms_eps: float = 1e-6
    max_positions: int = 2048
    arch: Arch = "qwen2"
    eos_token_ids: tuple[int, ...] = ()
    no_rope: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "vocab_size",
            "max_positions",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("rope_theta", "rms_eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be a positive number, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim < 2 or self.head_dim % 2:
            raise ConfigError(f"head_dim must be even (rotary embedding turns pairs), got {self.head_dim}")
        if self.arch not in _CLASSES:
            raise UnsupportedModel(f"arch {self.arch!r} is not one of {sorted(_CLASSES)}")
        if self.qkv_bias != (self.arch == "qwen2") or self.qk_norm != (self.arch == "qwen3"):
            raise UnsupportedModel(
                f"arch {self.arch!r} does not go with qkv_bias={self.qkv_bias}, qk_norm={self.qk_norm}: "
                "qwen2 has the bias, qwen3 the norm, the others neither"
            )
        if self.no_rope and self.arch != "smollm3":
            raise UnsupportedModel(
                f"arch {self.arch!r} has rotary embeddings in all layers: no_rope is smollm3's"
            )

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read the content of a ``config.json``. Raises ConfigError or UnsupportedModel naming the key."""
        arch = config.get("model_type")
        if arch not in _CLASSES:
            raise UnsupportedModel(f"model_type {arch!r} is not one of {sorted(_CLASSES)}")
        _refuse_unsupported(config, arch)
        heads = _need(config, "num_attention_heads")
        hidden = _need(config, "hidden_size")
        return cls(
            hidden_size=hidden,
            intermediate_size=_need(config, "intermediate_size"),
            num_layers=_need(config, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or (128 if arch == "qwen3" else hidden // max(1, heads))),
            vocab_size=_need(config, "vocab_size"),
            rope_theta=_rope_theta(config, arch),
            rms_eps=float(config.get("rms_norm_eps", 1e-6)),
            max_positions=int(config.get("max_position_embeddings") or _POSITIONS.get(arch, 32768)),
            tied=bool(config.get("tie_word_embeddings", arch == "smollm3")),
            qkv_bias=arch == "qwen2",
            qk_norm=arch == "qwen3",
            arch=arch,
            eos_token_ids=as_ids(config.get("eos_token_id")),
            no_rope=_no_rope(config) if arch == "smollm3" else (),
        )

    def to_hf(self) -> dict[str, Any]:
        """The ``config.json`` from which transformers' ``AutoModelForCausalLM`` builds the same network."""
        eos: int | list[int] | None = list(self.eos_token_ids) or None
        if len(self.eos_token_ids) == 1:
            eos = self.eos_token_ids[0]
        config: dict[str, Any] = {
            "architectures": [_CLASSES[self.arch]],
            "model_type": self.arch,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_eps,
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "eos_token_id": eos,
            "bos_token_id": None,
            "use_cache": True,
        }
        if self.arch in ("qwen2", "qwen3"):
            config["use_sliding_window"] = False
        if self.arch in ("llama", "qwen3", "smollm3"):
            config["attention_bias"] = False
        if self.arch == "mistral":
            config["sliding_window"] = None
        if self.arch == "smollm3":
            config["no_rope_layers"] = [int(i not in self.no_rope) for i in range(self.num_layers)]
            config["pad_token_id"] = None
        return config


@dataclass(frozen=True)
class ForeignConfig:
    """What is known of a model of another family, run through transformers' own forward."""

    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    def to_hf(self) -> dict[str, Any]:
        return dict(self.raw)


def as_ids(value: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """``eos_token_id`` of Hugging Face files is a number, a list or null: always a tuple here."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(int(i) for i in value)


def _need(config: Mapping[str, Any], key: str) -> int:
    if config.get(key) is None:
        raise ConfigError(f"there is no {key!r}, which a {config.get('model_type')} model needs")
    try:
        return int(config[key])
    except (TypeError, ValueError):
        raise ConfigError(f"{key} = {config[key]!r}: a whole number is needed") from None


def _rope_theta(config: Mapping[str, Any], arch: str) -> float:
    """transformers 5 writes ``rope_parameters``, older versions ``rope_theta`` and ``rope_scaling``."""
    nested = config.get("rope_parameters") or {}
    theta = nested.get("rope_theta", config.get("rope_theta"))
    return float(_THETA.get(arch, 10000.0) if theta is None else theta)


def _no_rope(config: Mapping[str, Any]) -> tuple[int, ...]:
    """SmolLM3's layers without rotary embedding: marked by a 0, or every fourth."""
    layers, every = _need(config, "num_hidden_layers"), int(config.get("no_rope_layer_interval") or 4)
    marks = config.get("no_rope_layers") or [(i + 1) % every for i in range(layers)]
    return tuple(i for i, mark in enumerate(marks) if not mark)


def _refuse_unsupported(config: Mapping[str, Any], arch: str) -> None:
    def refuse(key: str, why: str) -> None:
        raise UnsupportedModel(f"config.json: {key} = {config.get(key)!r} is not supported ({why})")

    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        refuse(key, "only unscaled rotary embeddings")
    if scaling.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) != 1.0:
        refuse("rope_parameters", "only whole-head rotary embeddings")
    if config.get("hidden_act", "silu") != "silu":
        refuse("hidden_act", "only silu")
    if config.get("use_sliding_window"):
        refuse("use_sliding_window", "only full attention")
    if arch == "mistral" and config.get("sliding_window", 4096) is not None:
        refuse("sliding_window", "only full attention")
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        refuse("layer_types", "only full_attention")
    if arch != "qwen2" and config.get("attention_bias"):
        refuse("attention_bias", "only Qwen2's bias on q, k and v")
    if config.get("mlp_bias"):
        refuse("mlp_bias", "only without bias")
    if config.get("quantization_config"):
        refuse("quantization_config", "only unquantised weights")


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object in a file of a model folder; of an ``optional`` one that is not there, the empty one."""
    if not path.exists():
        if optional:
            return {}
        raise MissingFile(f"{path}: a model folder needs this file{_instead(path.parent)}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return content


def _instead(folder: Path) -> str:
    """What to give in place of a folder that holds another form of a model."""
    if (folder / ADAPTER).is_file():
        return (
            f"; {folder} holds an adapter of LoRA: give adapter:{folder}, or the folder that "
            f"`agl policy fetch {folder}` makes"
        )
    file = next(iter(sorted(folder.glob("*.gguf"))), None)
    return f"; `agl policy fetch {file}` makes a model folder of that file" if file else ""
