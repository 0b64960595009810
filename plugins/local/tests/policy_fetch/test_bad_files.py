"""A file that cannot be converted is refused with what, where and what to do; never a crash."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from agl_local.policy.convert import convert_gguf
from agl_local.policy.gguf import BadModelFile, GGUFFile
from plugins.local.tests.policy_fetch.gguf_writer import (
    KINDS,
    gguf,
    metadata_of,
    small,
    tensors_of,
    write_policy,
)

POLICY = small()
METADATA, TENSORS = metadata_of(POLICY), tensors_of(POLICY, "Q8_0")[0]
NORM = (TENSORS["output_norm.weight"][0], 0, TENSORS["output_norm.weight"][2])
HUGE = 1 << 60


def convert(tmp_path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    convert_gguf(path, folder)


def array_of(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, count)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a GGUF file: it has 0 bytes"),
        (b"PK\x03\x04" + bytes(60), r"begins with b'PK\\x03\\x04', not b'GGUF'"),
        (gguf({}, {}, version=1), "of GGUF version 1; versions 2 and 3, little-endian"),
        (gguf({}, {}, version=3 << 24), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, HUGE, 0), "truncated or damaged; download it again"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, HUGE), "truncated or damaged"),
        (gguf({"x": array_of(8, HUGE)}, {}), "ends within a value"),
        (gguf({"x": array_of(4, HUGE)}, {}), "ends within a value"),
        (gguf({"x": array_of(9, 1)}, {}), "items of the unknown type 9"),
        (gguf({"x": struct.pack("<I", 77)}, {}), "the unknown type 77"),
        (gguf({"x": struct.pack("<IQ", 8, 2) + b"\xff\xfe"}, {}), "not UTF-8"),
        (gguf({"general.alignment": 3}, {}), "general.alignment is 3"),
        (gguf({"general.alignment": "x"}, {}), "general.alignment is a str, not a int"),
        (gguf({}, {"x": ((1,) * 5, 0, bytes(4))}), "5 dimensions"),
        (gguf({}, {"x": ((0, 32), 0, b"")}), r"shape \(0, 32\)"),
        (gguf({}, {"x": ((32, 40), KINDS["Q8_0"], bytes(4000))}), r"cannot be stored as Q8_0"),
        (gguf({}, {"x": ((32, 32), 14, bytes(4000))}), "'x' is stored as Q6_K; F32, F16, .*e.g. Q8_0"),
        (gguf({}, {"x": ((32, 32), 99, bytes(4000))}), "'x' is stored as type 99"),
        (gguf({}, {"x": ((32, 64), 0, bytes(64))}), "ends after the file: .*download it again"),
        (gguf({}, {"x": ((1 << 62, 1 << 62), 0, bytes(64))}), "ends after the file"),
        (gguf({}, {"x": ((32, 32), 0, bytes(64)), "y": ((32,), 0, bytes(8000))}), "overlaps another one"),
    ],
)
def test_a_damaged_container(tmp_path, data, said):
    with pytest.raises(BadModelFile, match=said) as caught:
        convert(tmp_path, data)
    assert str(tmp_path / "model.gguf") in str(caught.value)


def test_twice_the_same_name(tmp_path):
    twice = gguf({"ab": 1, "cd": 2}, {}).replace(b"cd", b"ab")
    with pytest.raises(BadModelFile, match="'ab' stands in the file twice"):
        convert(tmp_path, twice)
    twice = gguf({}, {"ab": NORM, "cd": NORM}).replace(b"cd", b"ab")
    with pytest.raises(BadModelFile, match="'ab' twice"):
        convert(tmp_path, twice)


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture", "llama.block_count", "llama.embedding_length", "llama.context_length",
        "llama.feed_forward_length", "llama.attention.head_count", "tokenizer.ggml.model",
        "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(tmp_path, key):
    with pytest.raises(BadModelFile, match=f"the file has no '{key}'.*Hugging Face layout"):
        convert(tmp_path, gguf({k: v for k, v in METADATA.items() if k != key}, TENSORS))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "gemma2"}, "'gemma2'; the families llama, qwen2, qwen3"),
        ({"general.architecture": 7}, "general.architecture is a int, not a str"),
        ({"llama.block_count": 4_000_000_000}, "4000000000 layers"),
        ({"llama.block_count": 1}, "unknown blk.1.attn_norm.weight"),
        ({"llama.block_count": 3}, "missing blk.2.attn_norm.weight"),
        ({"llama.block_count": 0}, "block_count is 0"),
        ({"llama.attention.head_count": [4, 4]}, "is a list, not a int"),
        ({"llama.attention.head_count": 3}, "multiple of num_kv_heads"),
        ({"llama.attention.key_length": 15}, "head_dim must be even"),
        ({"llama.feed_forward_length": 96}, r"ffn_gate.weight is \(64, 32\), not \(96, 32\)"),
        ({"llama.rope.freq_base": float("nan")}, "rope.freq_base is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "not a positive number"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type = 'yarn' is not supported"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count = 8 is not supported"),
        ({"llama.expert_count": 8}, "expert_count = 8 is not supported"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer is of the kind 'llama'"),
        ({"tokenizer.ggml.pre": "viking"}, "pre-tokenizer 'viking'.*Hugging Face layout"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "has 2 tokens"),
        ({"tokenizer.ggml.tokens": [1] * 9}, "holds int, not str"),
        ({"tokenizer.ggml.merges": ["abc"]}, "merges holds 'abc', not a pair"),
        ({"tokenizer.ggml.merges": ["zzz yyy"]}, "merges and tokens disagree"),
        ({"tokenizer.ggml.eos_token_id": 4000}, "eos_token_id is 4000; there are"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "eos_token_id is a str"),
        ({"tokenizer.chat_template": "{% if %}"}, "chat template, line 1"),
    ],
)
def test_a_model_that_cannot_be_converted(tmp_path, changes, said):
    with pytest.raises(BadModelFile, match=said):
        convert(tmp_path, gguf({**METADATA, **changes}, TENSORS))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "no tensor 'token_embd.weight'"),
        ({"token_embd.weight": NORM}, "2 layers cannot have 1 tensors"),
        ({k: v for k, v in TENSORS.items() if k != "output_norm.weight"}, "missing output_norm.weight"),
        ({**TENSORS, "rope_freqs.weight": NORM}, "unknown rope_freqs.weight"),
        ({**TENSORS, "blk.0.attn_q.bias": NORM}, "unknown blk.0.attn_q.bias"),
    ],
)
def test_tensors_that_are_not_the_networks(tmp_path, tensors, said):
    with pytest.raises(BadModelFile, match=said):
        convert(tmp_path, gguf(METADATA, tensors))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("F32", np.full(32, np.inf, "<f4").tobytes()),
        ("F16", b"\x01\x7c" * 32),  # a signalling NaN
        ("Q8_0", np.float16(np.inf).tobytes() + bytes(32)),  # infinity times zero
        ("Q4_1", np.array([np.inf, -np.inf], "<f2").tobytes() + b"\x11" * 16),
    ],
)
def test_values_that_are_not_finite(tmp_path, kind, data):
    with pytest.raises(BadModelFile, match=r"'output_norm.weight' holds values that are not finite"):
        convert(tmp_path, gguf(METADATA, {**TENSORS, "output_norm.weight": ((32,), KINDS[kind], data)}))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadModelFile, match=r"none.gguf: there is no such file"):
        GGUFFile(tmp_path / "none.gguf")


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = write_policy(tmp_path / "whole.gguf", POLICY, "Q8_0").read_bytes()
    for size in random.Random(1).sample(range(len(whole) - 64), 60):
        with pytest.raises(BadModelFile):
            convert(tmp_path, whole[:size])


def test_a_flipped_bit_never_crashes(tmp_path):
    whole = write_policy(tmp_path / "whole.gguf", POLICY, "Q8_0").read_bytes()
    chance = random.Random(2)
    refused = 0
    for _ in range(100):
        data = bytearray(whole)
        data[chance.randrange(len(data) // 4)] ^= 1 << chance.randrange(8)
        try:
            convert(tmp_path, bytes(data))
        except BadModelFile:
            refused += 1
    assert refused > 30
