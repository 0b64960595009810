"""A policy becomes a GGUF file that converts back to it; what llama.cpp would read otherwise is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors

from agl_local.network.config import Arch
from agl_local.policy.convert import convert_gguf
from agl_local.policy.folder import Policy, init_model, load_policy, save_policy, state
from agl_local.policy.gguf import BadModelFile, GGUFFile
from agl_local.policy.gguf_export import FILE, export_gguf
from agl_local.policy.gguf_tokenizer import SPLITS, tokenizer_of
from agl_local.policy.gguf_vocabulary import NoGGUF, vocabulary_of
from agl_local.policy.weights import StateError
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.engine_fixtures import LINES, TOOL, small_policy, trained_tokenizer
from plugins.local.tests.policy_fetch.gguf_writer import small, tensors_of

ABOUT = {"name": "mine", "license": "MIT", "description": ""}
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "Überraschung 12345\n"}]


def exported(policy: Policy, folder: Path, storage: str = "f32") -> GGUFFile:
    """The file of a policy, which lies beside it."""
    save_policy(policy, folder / "policy")
    (folder / "out").mkdir()
    export_gguf(folder / "policy", folder / "out", storage, ABOUT)
    return GGUFFile(folder / "out" / FILE)


@pytest.mark.parametrize(
    ("arch", "tied"), [("llama", True), ("llama", False), ("qwen2", True), ("qwen2", False), ("qwen3", False)]
)
@torch.no_grad()
def test_a_file_in_f32_converts_back_to_the_policy(tmp_path: Path, arch: Arch, tied: bool) -> None:
    policy = small(arch, tied)
    file = exported(policy, tmp_path)
    assert file.metadata["general.name"] == "mine" and "general.description" not in file.metadata
    (tmp_path / "back").mkdir()
    convert_gguf(file.path, tmp_path / "back")
    back = load_policy(tmp_path / "back", fallback=False)
    assert back.config == policy.config
    mine, theirs = state(policy.model), state(back.model)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    ids = torch.arange(3, 40)[None]
    assert torch.equal(back.model(ids), policy.model(ids))
    for text in [*LINES, "<|im_start|>user\nx<|im_end|>", "<tool_call>{}</tool_call> 12345", "e\u0301"]:
        assert back.tokenizer.encode(text) == policy.tokenizer.encode(text)
    assert back.tokenizer.render(MESSAGES, [TOOL]) == policy.tokenizer.render(MESSAGES, [TOOL])
    assert back.tokenizer.special == policy.tokenizer.special
    assert back.tokenizer.eos_ids == policy.tokenizer.eos_ids
    assert back.tokenizer.special_tokens == policy.tokenizer.special_tokens


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_rows_lie_as_llama_cpp_wants_them(tmp_path: Path, arch: Arch) -> None:
    policy = small(arch, seed=3)
    file = exported(policy, tmp_path)
    stored = tensors_of(policy)[0]
    assert file.tensors.keys() == stored.keys()
    for name, (shape, _, data) in stored.items():
        assert np.array_equal(file.read(name), np.frombuffer(data, "<f4").reshape(shape)), name


def test_halves_and_blocks(tmp_path: Path) -> None:
    policy = small("qwen2")
    full = exported(policy, tmp_path / "full")
    halves = exported(policy, tmp_path / "halves", "f16")
    blocks = exported(policy, tmp_path / "blocks", "q8_0")
    assert (halves.metadata["general.file_type"], blocks.metadata["general.file_type"]) == (1, 7)
    for name, tensor in full.tensors.items():
        values = full.read(name)
        if len(tensor.shape) == 1:  # norms and biases
            assert np.array_equal(halves.read(name), values) and np.array_equal(blocks.read(name), values)
            continue
        assert np.array_equal(halves.read(name), values.astype(np.float16).astype(np.float32))
        assert blocks.tensors[name].encoding.name == "Q8_0"
        largest = np.abs(values.reshape(-1, 32)).max(axis=1, keepdims=True)
        gap = np.abs(blocks.read(name).reshape(-1, 32) - values.reshape(-1, 32))
        assert (gap <= 0.502 * largest / 127 + 1e-3 * largest).all()  # half a level, and a scale in F16


def test_rows_without_whole_blocks_are_halves_and_a_block_of_zeros_is_zero(tmp_path: Path) -> None:
    policy = small("qwen3")
    config = dataclasses.replace(policy.config, intermediate_size=48)
    policy = Policy(init_model(config, 0), policy.tokenizer, config)
    with torch.no_grad():
        state(policy.model)["model.embed_tokens.weight"][0] = 0
    file = exported(policy, tmp_path, "q8_0")
    assert file.tensors["blk.0.ffn_down.weight"].encoding.name == "F16"
    assert file.tensors["blk.0.ffn_up.weight"].encoding.name == "Q8_0"
    assert not file.read("token_embd.weight")[0].any()


def test_a_number_that_a_half_cannot_hold_is_named(tmp_path: Path) -> None:
    policy = small("qwen2", tied=False)
    with torch.no_grad():
        state(policy.model)["lm_head.weight"][0, 0] = 1e6
    with pytest.raises(BadModelFile, match=r"/policy: output\.weight holds a number beyond 65504: store"):
        exported(policy, tmp_path, "f16")


def test_embeddings_without_a_token_are_filled(tmp_path: Path) -> None:
    policy = small("qwen2")
    size = policy.config.vocab_size
    config = dataclasses.replace(policy.config, vocab_size=size + 2)
    file = exported(Policy(init_model(config, 0), policy.tokenizer, config), tmp_path)
    assert file.metadata["tokenizer.ggml.tokens"][-2:] == [f"[PAD{size}]", f"[PAD{size + 1}]"]
    assert file.metadata["tokenizer.ggml.token_type"][-3:] == [4, 5, 5]
    assert tokenizer_of(file, size + 2).vocab_size == size


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    save_policy(small("qwen2"), tmp_path / "policy")
    with pytest.raises(NoGGUF, match="'q4' is none of f32, f16, q8_0"):
        export_gguf(tmp_path / "policy", tmp_path, "q4", {})
    config = json.loads((tmp_path / "policy/config.json").read_text())
    (tmp_path / "policy/config.json").write_text(json.dumps({**config, "model_type": "gemma2"}))
    with pytest.raises(NoGGUF, match="policy: model_type 'gemma2' is not one of"):
        export_gguf(tmp_path / "policy", tmp_path, "f32", {})
    (tmp_path / "policy/config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(StateError, match=r"policy do not fit the network: unknown model\.layers\.1\."):
        export_gguf(tmp_path / "policy", tmp_path, "f32", {})
    with pytest.raises(NoGGUF, match=r"4 heads have 64 columns, and the network 32: llama\.cpp loads only"):
        exported(small_policy(), tmp_path / "wide")
    with pytest.raises(NoGGUF, match="family is smollm3: only llama, qwen2, qwen3 were seen"):
        exported(small("smollm3"), tmp_path / "smollm3")


def test_an_output_layer_that_differs_from_the_embedding_is_not_dropped(tmp_path: Path) -> None:
    save_policy(small("qwen2", tied=True), tmp_path / "policy")
    file = tmp_path / "policy/model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, file)
    with pytest.raises(StateError, match=r"lm_head\.weight differs from the embedding it is tied to"):
        export_gguf(tmp_path / "policy", tmp_path, "f32", {})
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file)
    export_gguf(tmp_path / "policy", tmp_path, "f32", {})
    assert "output.weight" not in GGUFFile(tmp_path / FILE).tensors


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused(tmp_path: Path) -> None:
    policy = small("qwen2")
    config = dataclasses.replace(policy.config, vocab_size=20, eos_token_ids=(2,))
    with pytest.raises(StateError, match=r"the tokenizer has \d+ tokens, vocab_size of config\.json is 20"):
        exported(Policy(init_model(config, 0), policy.tokenizer, config), tmp_path)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("storage", ["f32", "f16", "q8_0"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, storage: str) -> None:
    policy = small("qwen2")
    with torch.no_grad():
        state(policy.model)["model.embed_tokens.weight"][0, 0] = torch.nan
    said = f"{tmp_path}/policy: NaN or infinite numbers stand in model.embed_tokens.weight"
    with pytest.raises(StateError, match=f"^{re.escape(said)}$"):
        exported(policy, tmp_path, storage)
    assert not list((tmp_path / "out").iterdir())


# -------------------------------------------------------------------------------------------- tokenizers
@pytest.mark.parametrize("pre", SPLITS)
def test_how_text_is_split_is_named(pre: str) -> None:
    tokenizer = trained_tokenizer()
    tokenizer.backend.pre_tokenizer = SPLITS[pre]()
    tokenizer.backend.normalizer = None
    tokenizer.backend.model.ignore_merges = pre == "llama-bpe"
    found, notes = vocabulary_of(tokenizer, tokenizer.vocab_size)
    assert found["tokenizer.ggml.pre"] == pre and notes == []


def test_texts_that_are_split_otherwise_are_noted() -> None:
    tokenizer = trained_tokenizer()
    tokenizer.backend.add_tokens([AddedToken("end\n", special=False), AddedToken("\n\nbegin", special=False)])
    notes = vocabulary_of(tokenizer, tokenizer.vocab_size)[1]
    assert "NFC" in notes[0] and r"('end\n' before '\n\nbegin')" in notes[1] and len(notes) == 2


def test_a_bos_token_that_is_added_is_added_by_llama_cpp(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(trained_tokenizer().backend, config={"eos_token": "<|im_end|>"})
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single=["<|im_start|>", "$A"], pair=None, special_tokens=[("<|im_start|>", 1)]
    )
    with pytest.raises(NoGGUF, match=r"llama\.cpp adds bos_token alone"):
        vocabulary_of(tokenizer, tokenizer.vocab_size)
    tokenizer.special["bos_token"] = "<|im_start|>"
    found = vocabulary_of(tokenizer, tokenizer.vocab_size)[0]
    assert found["tokenizer.ggml.add_bos_token"] is True and found["tokenizer.ggml.bos_token_id"] == 1


def test_a_template_for_tools_and_several_ends() -> None:
    tokenizer = ChatTokenizer(
        trained_tokenizer().backend, chat_template="a", tool_template="b", eos_ids=(2, 0, 1)
    )
    found = vocabulary_of(tokenizer, tokenizer.vocab_size)[0]
    assert found["tokenizer.chat_template"] == "a" and found["tokenizer.chat_template.tool_use"] == "b"
    assert [found[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot", "eom")] == [2, 0, 1]


def _words(tokenizer: ChatTokenizer) -> None:
    tokenizer.backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )


def _lower(tokenizer: ChatTokenizer) -> None:
    tokenizer.backend.normalizer = normalizers.Lowercase()


def _blanks(tokenizer: ChatTokenizer) -> None:
    tokenizer.backend.add_special_tokens([AddedToken("<x>", lstrip=True)])


def _merges(tokenizer: ChatTokenizer) -> None:
    tokenizer.backend.model.ignore_merges = True


def _affix(tokenizer: ChatTokenizer) -> None:
    tokenizer.backend.model.continuing_subword_prefix = "##"


def _endless(tokenizer: ChatTokenizer) -> None:
    tokenizer.eos_ids = ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_words, "splits text by .*Whitespace.*Known are the splits of gpt-2, smollm, qwen2, llama-bpe"),
        (_lower, "changes text before it splits it, by .*Lowercase"),
        (_blanks, "the token '<x>' takes blanks"),
        (_merges, "ignore_merges = True: llama.cpp would split prompts otherwise"),
        (_affix, "continuing_subword_prefix = '##'"),
        (_endless, "0 tokens end an answer"),
    ],
)
def test_a_tokenizer_that_llama_cpp_does_not_know_is_refused(change, said) -> None:
    tokenizer = trained_tokenizer()
    change(tokenizer)
    with pytest.raises(NoGGUF, match=said):
        vocabulary_of(tokenizer, tokenizer.vocab_size)
