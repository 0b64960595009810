from __future__ import annotations

import json
import os
import stat

import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file

from agl_local.network.config import ConfigError
from agl_local.policy.folder import (
    fingerprint,
    init_model,
    load_policy,
    load_state,
    parse_state,
    save_policy,
    state,
)
from agl_local.policy.weights import StateError
from plugins.local.tests.engine_fixtures import small_config, small_policy


@pytest.mark.parametrize("tied", [False, True])
def test_saved_and_loaded_bit_for_bit(tmp_path, tied):
    policy = small_policy(tied=tied)
    again = load_policy(save_policy(policy, tmp_path))
    assert fingerprint(again.model) == fingerprint(policy.model)
    assert again.config == policy.config
    assert again.tokenizer.eos_ids == policy.tokenizer.eos_ids
    assert ("lm_head.weight" in state(policy.model)) is not tied


def test_a_seed_makes_the_model():
    config = small_config(40)
    assert fingerprint(init_model(config, 1)) == fingerprint(init_model(config, 1))
    assert fingerprint(init_model(config, 1)) != fingerprint(init_model(config, 2))


def test_a_state_carries_the_parameters():
    ours, theirs = small_policy(seed=1).model, small_policy(seed=2).model
    load_state(theirs, parse_state(safetensors.torch.save(state(ours))))
    assert fingerprint(ours) == fingerprint(theirs)


def test_the_fingerprint_sees_one_bit():
    model = small_policy().model
    before = fingerprint(model)
    with torch.no_grad():
        weight = model.lm_head.weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(1.0))
    assert fingerprint(model) != before


def test_weights_that_do_not_fit_are_named_and_change_nothing():
    model = small_policy().model
    before = fingerprint(model)
    tensors = {**small_policy(seed=3, arch="llama").model.state_dict(), "extra": torch.zeros(1)}
    tensors["lm_head.weight"] = torch.zeros(2, 2)
    with pytest.raises(StateError, match=r"missing .*q_proj.bias") as caught:
        load_state(model, tensors)
    assert "unknown extra" in str(caught.value) and "lm_head.weight is (2, 2), not" in str(caught.value)
    with pytest.raises(StateError, match=r"not safetensors \(7 bytes\)"):
        parse_state(b"rubbish")
    assert fingerprint(model) == before


def test_a_tied_model_saved_with_its_output_layer(tmp_path):
    policy = small_policy(tied=True)
    save_policy(policy, tmp_path)
    tensors = {name: t.clone() for name, t in state(policy.model).items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert fingerprint(load_policy(tmp_path).model) == fingerprint(policy.model)
    tensors["lm_head.weight"][0] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(StateError, match="tie_word_embeddings"):
        load_policy(tmp_path)


def test_sharded_weights(tmp_path):
    policy = small_policy()
    save_policy(policy, tmp_path)
    names = sorted(state(policy.model))
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({n: state(policy.model)[n].clone() for n in part}, tmp_path / file)
    (tmp_path / "model.safetensors").unlink()
    index = {"weight_map": {n: file for file, part in parts.items() for n in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fingerprint(load_policy(tmp_path).model) == fingerprint(policy.model)
    index["weight_map"][names[0]] = "../elsewhere.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="outside"):
        load_policy(tmp_path)


def test_an_index_that_names_no_files_is_refused(tmp_path):
    save_policy(small_policy(), tmp_path)
    for content in ({}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=r"index\.json: its weight_map does not give each tensor"):
            load_policy(tmp_path)


def test_weights_in_whole_numbers_are_refused_by_name(tmp_path):
    policy = small_policy()
    save_policy(policy, tmp_path)
    tensors = {name: tensor.clone() for name, tensor in state(policy.model).items()}
    save_file({name: tensor.double() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    assert fingerprint(load_policy(tmp_path).model) == fingerprint(policy.model)
    codes = {**tensors, "model.norm.weight": tensors["model.norm.weight"].to(torch.int8)}
    save_file(codes, tmp_path / "model.safetensors")
    with pytest.raises(StateError, match=r"model\.safetensors: model\.norm\.weight is stored as I8; .*F64"):
        load_policy(tmp_path)


def test_a_mismatch_names_a_few_tensors_of_each_kind_and_counts_the_others(tmp_path):
    policy = small_policy()
    save_policy(policy, tmp_path)
    raw = {**policy.config.to_hf(), "num_hidden_layers": 5}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    tensors = {name: tensor.clone() for name, tensor in state(policy.model).items()}
    save_file({**tensors, "extra": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(
        StateError, match=r"the weights of .* do not fit the network: .* and \d+ more"
    ) as caught:
        load_policy(tmp_path)
    said = str(caught.value).removeprefix(f"the weights of {tmp_path}")
    assert said.count("missing") == 3 and said.endswith("; unknown extra") and len(said) < 300


def test_more_layers_than_tensors_are_refused_before_any_is_built(tmp_path):
    policy = small_policy()
    save_policy(policy, tmp_path)
    raw = {**policy.config.to_hf(), "num_hidden_layers": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"num_hidden_layers is 1000000000, and the weight files hold \d+ "):
        load_policy(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_end_token_beyond_the_vocabulary_is_refused(tmp_path, file):
    save_policy(small_policy(), tmp_path)
    raw = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**raw, "eos_token_id": [1, 99999]}))
    with pytest.raises(ConfigError, match=rf"/{file}: eos_token_id is 99999, which no answer can end with"):
        load_policy(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_policy(tmp_path)
    save_policy(small_policy(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load_policy(tmp_path)


def test_more_tokens_than_embeddings_is_refused(tmp_path):
    policy = small_policy()
    save_policy(policy, tmp_path)
    raw = {**policy.config.to_hf(), "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"vocab_size of config.json is 100"):
        load_policy(tmp_path)


def test_other_number_formats(tmp_path):
    save_policy(small_policy(), tmp_path)
    assert load_policy(tmp_path, dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="float8"):
        load_policy(tmp_path, dtype="float8")


def test_all_files_of_a_folder_may_be_read_by_the_same_people(tmp_path):
    before = os.umask(0o022)
    try:
        saved = save_policy(small_policy(), tmp_path / "policy")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in saved.iterdir()} == {0o644}
