from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from agl_local.policy.folder import load_policy, save_policy
from plugins.local.tests.engine_fixtures import small_policy

FAMILIES = [
    (arch, tied) for arch in ("qwen2", "qwen3", "llama", "mistral", "smollm3") for tied in (False, True)
]
TOLERANCE = 1e-5


@pytest.fixture
def ids(policy):
    return torch.randint(0, policy.config.vocab_size, (3, 40))


@pytest.mark.parametrize(("arch", "tied"), FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_transformers(arch, tied, tmp_path, ids):
    policy = small_policy(arch=arch, tied=tied)
    save_policy(policy, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert theirs.dtype == torch.float32
    assert torch.allclose(policy.model(ids), theirs(ids).logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("arch", "tied"), FAMILIES)
@torch.no_grad()
def test_reads_what_transformers_writes(arch, tied, tmp_path, ids):
    policy = small_policy(arch=arch, tied=tied)
    save_policy(policy, tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    policy.tokenizer.save(tmp_path / "theirs")
    again = load_policy(tmp_path / "theirs")
    assert again.config == policy.config
    assert torch.equal(again.model(ids), policy.model(ids))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama", "smollm3"])
@torch.no_grad()
def test_prefill_and_decode_over_the_cache_give_the_full_forward(arch, packed, ids):
    model = small_policy(arch=arch).model
    if packed:
        model.pack()
    want = model(ids)
    cache = model.new_cache(slots=9, max_len=64)
    slots = torch.tensor([7, 1, 4])
    positions = torch.arange(20).repeat(3, 1)
    positions[1, 15:] = -1
    first = model.step(ids[:, :20], positions, cache, slots)
    assert torch.allclose(first[0], want[0, :20], atol=TOLERANCE, rtol=0)
    assert torch.allclose(first[1, :15], want[1, :15], atol=TOLERANCE, rtol=0)
    at = torch.tensor([20, 15, 20])
    rows = torch.arange(3)
    for _ in range(10):
        got = model.step(ids[rows, at][:, None], at[:, None], cache, slots)[:, 0]
        assert torch.allclose(got, want[rows, at], atol=TOLERANCE, rtol=0)
        at = at + 1
    # A prefill that goes on at an offset is the same code.
    more = torch.stack([torch.arange(a, a + 4) for a in at.tolist()])
    got = model.step(ids.gather(1, more), more, cache, slots, last=torch.tensor([3, 3, 3]))
    assert torch.allclose(got, want[rows, at + 3], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 3, 5], [0, 4, 8]], ids=["view", "span", "gather"])
@torch.no_grad()
def test_however_slots_lie_in_the_cache(slots, ids):
    model = small_policy().model
    want = model(ids)
    cache = model.new_cache(slots=9, max_len=64)
    where = torch.tensor(slots)
    model.step(ids[:, :10], torch.arange(10).repeat(3, 1), cache, where)
    got = model.step(ids[:, 10:11], torch.full((3, 1), 10), cache, where)[:, 0]
    assert torch.allclose(got, want[:, 10], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_a_copied_prefix_is_as_good_as_a_computed_one(ids):
    model = small_policy().model
    cache = model.new_cache(slots=4, max_len=64)
    model.step(ids[:1, :20], torch.arange(20)[None], cache, torch.tensor([0]))
    cache.copy_prefix(0, [2, 3], 12)
    got = model.step(ids[:1, 12:13], torch.tensor([[12]]), cache, torch.tensor([3]))[0, 0]
    assert torch.allclose(got, model(ids[:1])[0, 12], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_padding_changes_nothing_and_has_zero_hidden_states(ids):
    model = small_policy().model
    padded = model.hidden(ids, lengths=torch.tensor([40, 25, 1]))
    assert torch.allclose(padded[1, :25], model.hidden(ids[1:2, :25])[0], atol=TOLERANCE, rtol=0)
    assert not padded[1, 25:].any() and not padded[2, 1:].any()


def test_a_position_outside_the_cache_is_refused(policy):
    cache = policy.model.new_cache(slots=1, max_len=8)
    with pytest.raises(ValueError, match=r"position 8 .* 8 tokens"):
        cache.plan(torch.tensor([0]), torch.tensor([[8]]))


def test_gradients_reach_every_parameter(ids):
    model = small_policy(arch="qwen3").model
    model(ids).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
