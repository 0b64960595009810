"""A GGUF file becomes a policy folder with the same floats, tokens and template."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from agl_local.network.model import CausalLM
from agl_local.policy.convert import convert_gguf
from agl_local.policy.folder import load_policy, load_state, state
from agl_local.policy.gguf import GGUFFile
from agl_local.policy.gguf_tokenizer import tokenizer_of
from plugins.local.tests.engine_fixtures import LINES
from plugins.local.tests.policy_fetch.gguf_writer import (
    KINDS,
    TOKENIZER,
    decoded,
    encoded,
    gguf,
    metadata_of,
    small,
    tensors_of,
    write_policy,
)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_decoded_as_the_specification_says(tmp_path, kind):
    rng = np.random.default_rng(1)
    values = rng.normal(size=(6, 64)).astype(np.float32)
    values[0, :32] = 0
    data = encoded(values, kind)
    path = tmp_path / "one.gguf"
    path.write_bytes(gguf({}, {"x": (values.shape, KINDS[kind], data)}))
    found = GGUFFile(path).read("x")
    assert found.dtype == np.float32 and np.array_equal(found, decoded(data, kind, values.shape))
    assert np.abs(found - values).max() < {"F32": 1e-9, "F16": 2e-3, "Q8_0": 0.02}.get(kind, 0.4)


def test_large_tensors_are_decoded_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("agl_local.policy.gguf._CHUNK", 64)
    values = np.random.default_rng(2).normal(size=(5, 96)).astype(np.float32)
    data = encoded(values, "Q4_1")
    path = tmp_path / "one.gguf"
    path.write_bytes(gguf({}, {"x": (values.shape, KINDS["Q4_1"], data)}, version=2))
    assert np.array_equal(GGUFFile(path).read("x"), decoded(data, "Q4_1", values.shape))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("arch", "tied"), [("llama", True), ("llama", False), ("qwen2", True)])
@torch.no_grad()
def test_the_folder_has_the_floats_and_the_logits(tmp_path, arch, tied, kind):
    policy = small(arch, tied)
    write_policy(tmp_path / "model.gguf", policy, kind)
    wanted = tensors_of(policy, kind)[1]
    (tmp_path / "out").mkdir()
    seen = []
    convert_gguf(tmp_path / "model.gguf", tmp_path / "out", lambda *done: seen.append(done))
    found = load_policy(tmp_path / "out", fallback=False)
    assert found.config == policy.config and seen[-1] == (len(wanted), len(wanted))
    assert {name: tensor.shape for name, tensor in state(found.model).items()} == {
        name: tensor.shape for name, tensor in wanted.items()
    }
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in state(found.model).items())
    reference = CausalLM(policy.config).eval()
    load_state(reference, wanted)
    ids = torch.arange(3, 40)[None]
    assert torch.equal(found.model(ids), reference(ids))


def test_tokens_template_and_special_tokens(tmp_path):
    write_policy(tmp_path / "model.gguf")
    (tmp_path / "out").mkdir()
    convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    found = load_policy(tmp_path / "out").tokenizer
    for text in [*LINES, "<|im_start|>user\nx<|im_end|>", "<tool_call>{}</tool_call> 12345", "e\u0301"]:
        assert found.encode(text) == TOKENIZER.encode(text)
        assert found.decode(found.encode(text)) == TOKENIZER.decode(TOKENIZER.encode(text))
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert found.render(messages) == TOKENIZER.render(messages)
    assert found.special == {
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
    }  # fmt: skip
    assert found.eos_ids == TOKENIZER.eos_ids
    assert [found.is_special(i) for i in range(3)] == [True] * 3
    assert not found.is_special(found.encode("<tool_call>")[0])
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 0)
    assert config["dtype"] == "float32"


@pytest.mark.slow
def test_transformers_reads_the_folder(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_policy(tmp_path / "model.gguf", small("llama"), "Q8_0")
    (tmp_path / "out").mkdir()
    convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.allclose(theirs(ids).logits, load_policy(tmp_path / "out").model(ids), atol=1e-5)
    words = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert words(LINES[2])["input_ids"] == TOKENIZER.encode(LINES[2])
    assert words.pad_token == "<|endoftext|>"


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["Don", "'t", "Ġsay", "Ġ", "1", "2", "3", "4", "Ċ", "x"]),
        ("gpt-2", ["Don", "'t", "Ġsay", "Ġ1234", "Ċ", "x"]),
        ("qwen2", ["Don", "'t", "Ġsay", "Ġ", "1", "2", "3", "4", "Ċ", "x"]),
        ("llama-bpe", ["Don", "'t", "Ġsay", "Ġ", "123", "4", "Ċ", "x"]),
    ],
)
def test_text_is_split_as_the_model_was_trained(tmp_path, pre, pieces):
    path = write_policy(
        tmp_path / "model.gguf", **{"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": None}
    )
    found = tokenizer_of(GGUFFile(path), TOKENIZER.vocab_size)
    assert [word for word, _ in found.backend.pre_tokenizer.pre_tokenize_str("Don't say 1234\nx")] == pieces
    begins = found.encode("a", add_special_tokens=True)[0] == 1
    assert begins is (pre == "llama-bpe")  # llama.cpp begins texts with bos there, unless the file says no


def test_unused_tokens_are_left_out(tmp_path):
    policy = small()
    metadata = metadata_of(policy)
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    path = write_policy(
        tmp_path / "model.gguf", policy,
        **{"tokenizer.ggml.tokens": [*tokens, "[PAD1]"], "tokenizer.ggml.token_type": [*kinds, 5]},
    )  # fmt: skip
    found = tokenizer_of(GGUFFile(path), TOKENIZER.vocab_size + 1)
    assert found.vocab_size == TOKENIZER.vocab_size and found.token_bytes(len(tokens)) == b""


def test_both_ends_of_an_answer_are_kept(tmp_path):
    path = write_policy(tmp_path / "model.gguf", **{"tokenizer.ggml.eot_token_id": 0})
    (tmp_path / "out").mkdir()
    convert_gguf(path, tmp_path / "out")
    assert load_policy(tmp_path / "out").tokenizer.eos_ids == (2, 0)
    assert load_policy(tmp_path / "out").config.eos_token_ids == (2, 0)
