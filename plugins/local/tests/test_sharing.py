from __future__ import annotations

import random
from concurrent.futures import Future

import pytest
import torch

from agl_local.generation.engine import Completion, Engine, Request
from agl_local.network import kv, sharing
from agl_local.network.sampling import Sampling
from agl_local.network.sharing import BLOCK, Lineage
from agl_local.policy.folder import Policy, init_model, state
from plugins.local.tests.engine_fixtures import logprobs_of, small_policy

TOLERANCE = 1e-5


@pytest.fixture
def always(monkeypatch):
    """Share whatever can be shared, however little it saves; the list collects the cuts chosen."""
    cuts: list[int] = []

    def arrange(cut, *rest):
        cuts.append(cut)
        return sharing.arrange(cut, *rest)

    monkeypatch.setattr(sharing, "_EXTRA_COST", -(10**9))
    monkeypatch.setattr(sharing, "_STACK_COST", 0)
    monkeypatch.setattr(kv, "arrange", arrange)
    return cuts


def tokens(rng: random.Random, policy: Policy, count: int) -> list[int]:
    return [rng.randrange(3, policy.config.vocab_size) for _ in range(count)]


def same_as_alone(policy: Policy, prompt: list[int], done: Completion) -> bool:
    want = logprobs_of(policy, prompt, done.token_ids)
    return max(abs(a - b) for a, b in zip(done.logprobs, want, strict=True)) <= TOLERANCE


def test_a_copy_shares_whole_blocks_until_it_is_written():
    lineage = Lineage(4)
    lineage.copied(0, [1, 2], 2 * BLOCK + 5)
    assert lineage.stacks([0, 1, 2, 3], 2) == [[0, 1, 2], [3]]
    assert lineage.stacks([0, 1, 2, 3], 3) == [[0], [1], [2], [3]]
    lineage.written(1, BLOCK + 1)
    assert lineage.stacks([0, 1, 2], 2) == [[0, 2], [1]] and lineage.stacks([0, 1, 2], 1) == [[0, 1, 2]]
    lineage.copied(1, [3], 3 * BLOCK)
    assert lineage.stacks([0, 1, 2, 3], 3) == [[0], [1, 3], [2]]
    assert lineage.stacks([0, 1, 2, 3], 1) == [[0, 1, 2, 3]]
    lineage.written(0, 0)
    assert lineage.stacks([0, 2], 1) == [[0], [1]]


def test_the_cut_is_where_reading_costs_least():
    lineage = Lineage(64)
    assert lineage.best(range(64), 2048, 2048) is None
    lineage.copied(0, range(1, 64), 4 * BLOCK)
    for first in range(0, 64, 8):
        lineage.copied(first, range(first + 1, first + 8), 10 * BLOCK)
    found = lineage.best(range(64), 11 * BLOCK, 11 * BLOCK)
    assert found is not None
    cut, stacks = found
    assert cut == 10 * BLOCK and stacks == [list(range(i, i + 8)) for i in range(0, 64, 8)]
    # Columns that a row still writes are not shared; a little is not worth the trouble.
    found = lineage.best(range(64), 6 * BLOCK - 1, 11 * BLOCK)
    assert found is not None and found[0] == 5 * BLOCK
    assert lineage.best(range(64), 2 * BLOCK, 2 * BLOCK) is None
    assert lineage.best([0, 8, 16], 11 * BLOCK, 11 * BLOCK) is None


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("slots", [[0, 1, 2, 3], [5, 3, 2, 6], [0, 4, 9, 13]], ids=["view", "span", "gather"])
@torch.no_grad()
def test_shared_columns_give_the_full_forward(arch, slots, always):
    policy = small_policy(arch=arch)
    head = torch.tensor(tokens(random.Random(1), policy, 70))
    ids = torch.randint(3, policy.config.vocab_size, (4, 100))
    ids[:3, :70] = head
    want = policy.model(ids)
    cache = policy.model.new_cache(slots=14, max_len=128)
    where = torch.tensor(slots)
    prompts = torch.arange(80).repeat(4, 1)
    policy.model.step(ids[[0, 3], :70], prompts[:2, :70], cache, where[[0, 3]])
    cache.copy_prefix(slots[0], slots[1:3], 70)
    policy.model.step(ids[:, 70:80], prompts[:, 70:], cache, where)
    for at in range(80, 100):
        got = policy.model.step(ids[:, at : at + 1], torch.full((4, 1), at), cache, where)[:, 0]
        assert torch.allclose(got, want[:, at], atol=TOLERANCE, rtol=0)
    assert always and set(always) == {64}


@pytest.mark.parametrize("how", ["prefill", "copy"])
@torch.no_grad()
def test_a_slot_that_gets_another_conversation_is_read_anew(how, policy, always):
    ids = torch.randint(3, policy.config.vocab_size, (5, 100))
    ids[1:3, :70] = ids[0, :70]
    # The fifth conversation takes the place of the fourth: with columns of its own, or copied ones.
    ids[4, :70] = ids[0, :70] if how == "copy" else ids[4, :70]
    want = policy.model(ids)
    model, cache = policy.model, policy.model.new_cache(slots=4, max_len=128)
    places, where = torch.arange(80).repeat(2, 1), torch.arange(4)

    def decode(rows, at):
        return model.step(ids[rows, at][:, None], torch.full((4, 1), at), cache, where)[:, 0]

    model.step(ids[[0, 3], :70], places[:, :70], cache, where[[0, 3]])
    cache.copy_prefix(0, [1, 2], 70)
    model.step(ids[:4, 70:80], torch.arange(70, 80).repeat(4, 1), cache, where)
    assert torch.allclose(decode([0, 1, 2, 3], 80), want[:4, 80], atol=TOLERANCE, rtol=0)
    if how == "copy":
        cache.copy_prefix(0, [3], 70)
    first = 70 if how == "copy" else 0
    model.step(ids[4:, first:81], torch.arange(first, 81)[None], cache, where[3:])
    rows = [0, 1, 2, 4]
    assert torch.allclose(decode(rows, 81), want[rows, 81], atol=TOLERANCE, rtol=0)
    assert always == [64, 64]


def test_conversations_that_branch_and_slots_that_are_used_again(always):
    policy, rng = small_policy(), random.Random(3)
    head = tokens(rng, policy, 40)
    with Engine(policy, slots=10, max_len=256) as engine:
        jobs: list[tuple[list[int], Future[list[Completion]]]] = []
        for i in range(12):
            prompt = head[: 40 - i % 2] + tokens(rng, policy, 60 + 7 * i)
            request = Request(prompt, Sampling(max_tokens=4 + i, seed=i, ignore_eos=True), n=1 + i % 5)
            jobs.append((prompt, engine.submit(request)))
        turns = [(prompt, done) for prompt, future in jobs for done in future.result(60)]
        again = [[*prompt, *done.token_ids, 7] for prompt, done in turns[::3]]
        futures = [engine.submit(Request(p, Sampling(max_tokens=9, seed=1), n=2)) for p in again]
        turns += [(p, done) for p, f in zip(again, futures, strict=True) for done in f.result(60)]
    assert all(same_as_alone(policy, prompt, done) for prompt, done in turns)
    assert len(set(always)) > 1


def test_new_weights_leave_nothing_shared_behind(always):
    policy, rng = small_policy(), random.Random(4)
    prompt = tokens(rng, policy, 90)
    other = Policy(init_model(policy.config, 7, std=0.1).eval(), policy.tokenizer, policy.config)
    with Engine(policy, slots=4, max_len=128) as engine:
        before = engine.submit(Request(prompt, Sampling(max_tokens=8, seed=0), n=4)).result(60)
        engine.load_weights(state(other.model), 1)
        after = engine.submit(Request(prompt, Sampling(max_tokens=8, seed=0), n=4)).result(60)
    assert all(same_as_alone(policy, prompt, done) for done in before)
    assert all(same_as_alone(other, prompt, done) for done in after)
    assert len(always) >= 2


def test_bfloat16_shares_too(always):
    policy = small_policy()
    policy.model.to(torch.bfloat16)
    prompt = tokens(random.Random(5), policy, 90)
    with Engine(policy, slots=4, max_len=128) as engine:
        got = engine.submit(Request(prompt, Sampling(max_tokens=8, seed=0), n=4)).result(60)
    for done in got:
        want = logprobs_of(policy, prompt, done.token_ids)
        # bfloat16 has 8 bits: both ways round every sum.
        assert max(abs(a - b) for a, b in zip(done.logprobs, want, strict=True)) < 0.2
    assert always
