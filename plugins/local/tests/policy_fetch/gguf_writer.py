"""A small writer of GGUF files, and a slow, plain decoder of their blocks to compare with."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import numpy as np
import torch

from agl_local.network.config import Arch
from agl_local.policy.folder import Policy, init_model, state
from plugins.local.tests.engine_fixtures import TEMPLATE, small_config, trained_tokenizer

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8}
TOKENIZER = trained_tokenizer()


def small(arch: Arch = "llama", tied: bool = True, seed: int = 0) -> Policy:
    """A random policy whose rows have whole blocks of 32 values, and whose heads llama.cpp knows."""
    config = small_config(TOKENIZER.vocab_size, arch, tied, TOKENIZER.eos_ids)
    config = dataclasses.replace(config, intermediate_size=64, head_dim=8 if arch == "qwen2" else 16)
    model = init_model(config, seed, std=0.1).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    return Policy(model, TOKENIZER, config)


# ------------------------------------------------------------------------------------------------ encodings
def encoded(values: np.ndarray, kind: str) -> bytes:
    """``values`` as the bytes of a tensor."""
    if kind in ("F32", "F16"):
        return values.astype("<f4" if kind == "F32" else "<f2").tobytes()
    out = b""
    for block in values.reshape(-1, 32):
        low, high = float(block.min()), float(block.max())
        if kind == "Q8_0":
            scale = np.float16(max(abs(low), abs(high)) / 127 or 1)
            out += scale.tobytes() + np.clip(np.rint(block / scale), -127, 127).astype(np.int8).tobytes()
            continue
        if kind == "Q4_0":
            scale, shift = np.float16(max(abs(low), abs(high)) / 7 or 1), np.float16(0)
            levels = np.clip(np.rint(block / scale) + 8, 0, 15).astype(np.uint8)
            head = scale.tobytes()
        else:
            scale, shift = np.float16((high - low) / 15 or 1), np.float16(low)
            levels = np.clip(np.rint((block - float(shift)) / float(scale)), 0, 15).astype(np.uint8)
            head = scale.tobytes() + shift.tobytes()
        out += head + bytes(int(levels[i]) | int(levels[i + 16]) << 4 for i in range(16))
    return out


def decoded(data: bytes, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of ``encoded`` by the specification, one value at a time, in float32."""
    one = np.float32
    if kind in ("F32", "F16"):
        return np.frombuffer(data, "<f4" if kind == "F32" else "<f2").astype(one).reshape(shape)
    values: list[np.float32] = []
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    for start in range(0, len(data), size):
        block = data[start : start + size]
        scale = one(np.frombuffer(block[:2], "<f2")[0])
        if kind == "Q8_0":
            values += [one(level) * scale for level in struct.unpack("<32b", block[2:])]
            continue
        shift = one(np.frombuffer(block[2:4], "<f2")[0])
        packed = block[2:] if kind == "Q4_0" else block[4:]
        levels = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
        values += [
            one(level - 8) * scale if kind == "Q4_0" else one(level) * scale + shift for level in levels
        ]
    return np.array(values, one).reshape(shape)


# ------------------------------------------------------------------------------------------------- the file
def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: object) -> bytes:
    """Type and bytes of a metadata value."""
    if isinstance(value, bytes):  # written as it is, type included
        return value
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    assert isinstance(value, list)
    items = [_value(item) for item in value]
    return (
        struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(i[4:] for i in items)
    )


Tensor = tuple[tuple[int, ...], int, bytes]
"""Shape in numpy's order, number of the encoding, bytes."""


def gguf(metadata: dict[str, object], tensors: dict[str, Tensor], version: int = 3) -> bytes:
    """The bytes of a GGUF file."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _value(value)
    data = b""
    for name, (shape, kind, stored) in tensors.items():
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += _string(name) + dimensions + struct.pack("<IQ", kind, len(data))
        data += stored + bytes(-len(stored) % 32)
    return head + bytes(-len(head) % 32) + data


def metadata_of(policy: Policy) -> dict[str, object]:
    """The metadata that llama.cpp's converter writes for such a policy."""
    c = policy.config
    words = json.loads(policy.tokenizer.backend.to_str())
    added = {token["content"]: 3 if token["special"] else 4 for token in words["added_tokens"]}
    ids = {**words["model"]["vocab"], **{token["content"]: token["id"] for token in words["added_tokens"]}}
    tokens = sorted(ids, key=ids.__getitem__)
    sizes = {
        "block_count": c.num_layers,
        "context_length": c.max_positions,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.rms_eps,
        "rope.freq_base": c.rope_theta,
    }
    return {
        "general.architecture": c.arch,
        **{f"{c.arch}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [added.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in words["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": ids["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
        "tokenizer.ggml.padding_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


_PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    part, _, ending = name.rpartition(".")
    if part in _PARTS:
        return f"{_PARTS[part]}.{ending}"
    _, _, layer, part = part.split(".", 3)
    return f"blk.{layer}.{_PARTS[part]}.{ending}"


def tensors_of(policy: Policy, kind: str = "F32") -> tuple[dict[str, Tensor], dict[str, torch.Tensor]]:
    """The tensors of the file, matrices stored as ``kind``; and the parameters that they decode to."""
    c = policy.config
    stored: dict[str, Tensor] = {}
    wanted: dict[str, torch.Tensor] = {}
    for name, parameter in state(policy.model).items():
        values, way = parameter.numpy(), kind if parameter.dim() == 2 else "F32"
        heads = {"q_proj": c.num_heads, "k_proj": c.num_kv_heads}.get(name.split(".")[-2])
        permuted = c.arch == "llama" and heads is not None
        if permuted:  # LlamaModel.permute of llama.cpp
            split = values.reshape(heads, 2, len(values) // heads // 2, -1)
            values = split.swapaxes(1, 2).reshape(values.shape)
        data = encoded(values, way)
        stored[gguf_name(name)] = (values.shape, KINDS[way], data)
        values = decoded(data, way, values.shape)
        if permuted:
            split = values.reshape(heads, len(values) // heads // 2, 2, -1)
            values = split.swapaxes(1, 2).reshape(values.shape)
        wanted[name] = torch.from_numpy(values.copy())
    return stored, wanted


def write_policy(path: Path, policy: Policy | None = None, kind: str = "F32", **changes: object) -> Path:
    """Write a policy as a GGUF file; ``changes`` replace metadata, None leaves it out."""
    policy = policy or small()
    metadata = {**metadata_of(policy), **changes}
    path.write_bytes(gguf({k: v for k, v in metadata.items() if v is not None}, tensors_of(policy, kind)[0]))
    return path
