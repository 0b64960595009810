"""Other families run through transformers behind the same interface."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
)

from agl_local.generation.engine import Engine
from agl_local.network.config import ForeignConfig, UnsupportedModel
from agl_local.network.hf import TransformersLM
from agl_local.policy.folder import Policy, fingerprint, load_policy, save_policy, state
from plugins.local.tests.engine_fixtures import ask, logprobs_of, trained_tokenizer

TOKENIZER = trained_tokenizer()
VOCAB = TOKENIZER.vocab_size
PROMPT = list(range(5, 50))


def gpt2():
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=2
    )
    return GPT2LMHeadModel(config)


def gemma2():
    config = Gemma2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=128, sliding_window=8,
        final_logit_softcapping=5.0, eos_token_id=2, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return Gemma2ForCausalLM(config)


@pytest.fixture(params=[gpt2, gemma2])
def foreign(request) -> Policy:
    torch.manual_seed(0)
    model = TransformersLM(request.param().eval())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    return Policy(model, TOKENIZER, model.config)


@torch.no_grad()
def test_forward_hidden_and_step_agree_with_transformers(foreign):
    model = foreign.model
    ids = torch.randint(0, VOCAB, (2, 30))
    want = model.inner(ids).logits
    assert torch.allclose(model(ids), want, atol=1e-5)
    lengths = torch.tensor([30, 11])
    assert torch.allclose(model(ids, lengths=lengths)[1, :11], want[1, :11], atol=1e-5)
    assert torch.allclose(model.logits(model.hidden(ids)), want, atol=1e-5)
    cache = model.new_cache(4, 64)
    slots = torch.tensor([3, 1])
    positions = torch.arange(20).repeat(2, 1)
    positions[1, 12:] = -1
    first = model.step(ids[:, :20], positions, cache, slots)
    assert torch.allclose(first[0], want[0, :20], atol=1e-4)
    assert torch.allclose(first[1, :12], want[1, :12], atol=1e-4)
    cache.copy_prefix(3, [0], 10)
    got = model.step(ids[:1, 10:11], torch.tensor([[10]]), cache, torch.tensor([0]))
    assert torch.allclose(got[0, 0], want[0, 10], atol=1e-4)


def test_the_engine_serves_it(foreign):
    with Engine(foreign, slots=4, max_len=64) as engine:
        for _ in range(2):
            for c in ask(engine, PROMPT, n=3, max_tokens=8, seed=1, ignore_eos=True):
                assert c.logprobs == pytest.approx(logprobs_of(foreign, PROMPT, c.token_ids), abs=1e-4)
            engine.load_weights(state(foreign.model), engine.version + 1, timeout=300)
        assert engine.stats.reused_tokens == 4 * (len(PROMPT) - 1)


def test_loading_says_that_it_is_slower(tmp_path, caplog):
    foreign = TransformersLM(gpt2().eval())
    foreign.inner.save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    with caplog.at_level(logging.WARNING, "agl_local.network.hf"):
        policy = load_policy(tmp_path)
    assert "slower" in caplog.text and "gpt2" in caplog.text
    assert isinstance(policy.config, ForeignConfig) and policy.config.vocab_size == VOCAB
    ids = torch.tensor([PROMPT])
    assert torch.allclose(policy.model(ids), foreign(ids), atol=1e-6)
    with pytest.raises(UnsupportedModel, match="gpt2"):
        load_policy(tmp_path, fallback=False)


def test_saved_in_its_own_layout(tmp_path, foreign):
    save_policy(foreign, tmp_path)
    assert fingerprint(load_policy(tmp_path).model) == fingerprint(foreign.model)


def test_a_model_without_keys_and_values_is_refused(tmp_path):
    MambaForCausalLM(
        MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4)
    ).save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    with pytest.raises(UnsupportedModel, match="mamba"):
        load_policy(tmp_path)
