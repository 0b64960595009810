"""Conversion of a GGUF file into a policy folder in Hugging Face layout, with float32 weights.

Invariants: the folder's parameters are the dequantised values of the file, and ``load_policy`` reads it; a
file whose network this package would compute otherwise is refused by name. One tensor is in memory at a time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agl_local.network.config import ELSEWHERE, ConfigError, ModelConfig
from agl_local.policy.gguf import BadModelFile, Floats, GGUFFile
from agl_local.policy.gguf_tokenizer import end_ids, tokenizer_of

FORMAT = 1
"""Number of the conversion: a change of what is written raises it, so that a cached policy is made again."""

Progress = Callable[[int, int], None]
"""``progress(done, all)``: tensors that are written."""


def convert_gguf(path: str | Path, folder: Path, progress: Progress = lambda done, all: None) -> None:
    """Write the model of a GGUF file into ``folder``, an empty one. Raise :class:`BadModelFile`."""
    file = GGUFFile(path)
    config = config_of(file)
    parameters = _parameters(file, config)
    tokenizer = tokenizer_of(file, config.vocab_size)
    tokenizer.save(folder)
    ids = {
        f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in {"bos": "bos", "pad": "padding"}.items()
    }
    _write_json(folder / "config.json", {**config.to_hf(), **ids, "dtype": "float32"})
    generation = {**ids, "eos_token_id": list(config.eos_token_ids), "do_sample": True, "temperature": 1.0}
    _write_json(folder / "generation_config.json", generation)
    _write_weights(file, folder / "model.safetensors", parameters, config, progress)


def config_of(file: GGUFFile) -> ModelConfig:
    """Return the shape of the file's network. Raise :class:`BadModelFile` for one that is not supported."""
    family = file.need("general.architecture", str)
    arch = next((one for one in ELSEWHERE if one == family), None)
    if arch is None:
        raise BadModelFile(
            f"{file.path}: general.architecture is {family!r}; the families "
            f"{', '.join(ELSEWHERE)} are converted. Give the model's folder in Hugging Face layout"
        )
    if "token_embd.weight" not in file.tensors:
        raise BadModelFile(f"{file.path}: there is no tensor 'token_embd.weight': the file holds no model")
    heads, hidden = _count(file, arch, "attention.head_count"), _count(file, arch, "embedding_length")
    layers = _count(file, arch, "block_count")
    if layers > len(file.tensors):
        raise BadModelFile(f"{file.path}: {layers} layers cannot have {len(file.tensors)} tensors")
    head_dim = _count(file, arch, "attention.key_length", hidden // heads)
    _refuse_unsupported(file, arch, head_dim)
    try:
        return ModelConfig(
            hidden_size=hidden,
            intermediate_size=_count(file, arch, "feed_forward_length"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=_count(file, arch, "attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab_size=file.tensors["token_embd.weight"].shape[0],
            rope_theta=_positive(file, f"{arch}.rope.freq_base", 10000.0),
            rms_eps=_positive(file, f"{arch}.attention.layer_norm_rms_epsilon"),
            max_positions=_count(file, arch, "context_length"),
            tied="output.weight" not in file.tensors,
            qkv_bias=arch == "qwen2",
            qk_norm=arch == "qwen3",
            arch=arch,
            eos_token_ids=end_ids(file),
        )
    except ConfigError as error:
        raise BadModelFile(f"{file.path}: {error}") from error


def _refuse_unsupported(file: GGUFFile, arch: str, head_dim: int) -> None:
    """Raise for features that change what the network computes."""
    plain: dict[str, tuple[Any, ...]] = {
        "rope.scaling.type": ("none",),
        "rope.scaling.factor": (0.0, 1.0),
        "rope.scale_linear": (0.0, 1.0),
        "rope.dimension_count": (head_dim,),
        "attention.value_length": (head_dim,),
        "attention.sliding_window": (0,),
        "expert_count": (0,),
        "logit_scale": (),
    }
    for name, allowed in plain.items():
        key = f"{arch}.{name}"
        if key in file.metadata and file.metadata[key] not in allowed:
            raise BadModelFile(
                f"{file.path}: {key} = {file.metadata[key]!r} is not supported: only unscaled rotary "
                "embeddings of whole heads, full attention, and networks without experts"
            )


def _count(file: GGUFFile, arch: str, name: str, default: int | None = None) -> int:
    key = f"{arch}.{name}"
    value = file.need(key, int) if default is None else file.get(key, int, default)
    if value < 1:
        raise BadModelFile(f"{file.path}: {key} is {value}, not at least 1")
    return value


def _positive(file: GGUFFile, key: str, default: float | None = None) -> float:
    """Return a positive number, as the shortest decimal of the stored float32: 1e-05, not 9.99999974e-06."""
    value = file.need(key, float) if default is None else file.get(key, float, default)
    if not (math.isfinite(value) and value > 0):
        raise BadModelFile(f"{file.path}: {key} is {value}, not a positive number")
    return float(str(np.float32(value)))


# ------------------------------------------------------------------------------------------------- weights
def tensor_names(config: ModelConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield each tensor: its name in GGUF, its name in Hugging Face files, and its shape."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "token_embd.weight", "model.embed_tokens.weight", (config.vocab_size, hidden)
    for i in range(config.num_layers):
        here, there = f"blk.{i}", f"model.layers.{i}"
        yield f"{here}.attn_norm.weight", f"{there}.input_layernorm.weight", (hidden,)
        yield f"{here}.ffn_norm.weight", f"{there}.post_attention_layernorm.weight", (hidden,)
        for name, rows in {"q": queries, "k": keys, "v": keys}.items():
            yield f"{here}.attn_{name}.weight", f"{there}.self_attn.{name}_proj.weight", (rows, hidden)
            if config.qkv_bias:
                yield f"{here}.attn_{name}.bias", f"{there}.self_attn.{name}_proj.bias", (rows,)
            if config.qk_norm and name != "v":
                norm = f"{there}.self_attn.{name}_norm.weight"
                yield f"{here}.attn_{name}_norm.weight", norm, (config.head_dim,)
        yield f"{here}.attn_output.weight", f"{there}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{here}.ffn_gate.weight", f"{there}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{here}.ffn_up.weight", f"{there}.mlp.up_proj.weight", (inner, hidden)
        yield f"{here}.ffn_down.weight", f"{there}.mlp.down_proj.weight", (hidden, inner)
    yield "output_norm.weight", "model.norm.weight", (hidden,)
    if not config.tied:
        yield "output.weight", "lm_head.weight", (config.vocab_size, hidden)


def _parameters(file: GGUFFile, config: ModelConfig) -> dict[str, str]:
    """Return GGUF name → Hugging Face name. Raise if tensors are missing, unknown or of another shape."""
    wanted = {name: (parameter, shape) for name, parameter, shape in tensor_names(config)}
    problems = [f"missing {name}" for name in wanted if name not in file.tensors]
    problems += [f"unknown {name}" for name in file.tensors if name not in wanted]
    problems += [
        f"{name} is {file.tensors[name].shape}, not {shape}"
        for name, (_, shape) in wanted.items()
        if name in file.tensors and file.tensors[name].shape != shape
    ]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise BadModelFile(
            f"{file.path}: its tensors are not those of a plain {config.arch} network: "
            f"{'; '.join(problems[:8])}{more}. Give the model's folder in Hugging Face layout"
        )
    return {name: parameter for name, (parameter, _) in wanted.items()}


def _write_weights(
    file: GGUFFile, path: Path, parameters: dict[str, str], config: ModelConfig, progress: Progress
) -> None:
    """Write the tensors one after another. The format is that of safetensors: length of the header, header,
    data.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, parameter in parameters.items():
        shape = file.tensors[name].shape
        start, end = end, end + 4 * math.prod(shape)
        header[parameter] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for done, name in enumerate(parameters, start=1):
            values = file.read(name)
            if not np.isfinite(values).all():
                raise BadModelFile(f"{file.path}: the tensor {name!r} holds values that are not finite")
            if config.arch == "llama" and ".attn_q." in name:
                values = _unpermuted(values, config.num_heads)
            if config.arch == "llama" and ".attn_k." in name:
                values = _unpermuted(values, config.num_kv_heads)
            out.write(values.astype("<f4", copy=False).data)
            progress(done, len(parameters))


def _unpermuted(values: Floats, heads: int) -> Floats:
    """Return rows of q or k in the order of Hugging Face.

    GGUF files of Llama hold the two halves of each head interleaved, as rotary embeddings of neighbours need
    them (``LlamaModel.permute`` in llama.cpp's convert_hf_to_gguf.py).
    """
    half = len(values) // heads // 2
    split = values.reshape(heads, half, 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
