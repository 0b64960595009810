from __future__ import annotations

import asyncio
import random

import pytest
import torch
from marks import sampled

from agl_local.generation.engine import Engine, Request
from agl_local.network.sampling import Sampling, adjusted, truncate
from agl_local.policy.folder import Policy, state
from plugins.local.tests.engine_fixtures import ask, logprobs_of, small_policy


def some_prompts(policy: Policy, count: int, length: int = 30, shared: int = 0) -> list[list[int]]:
    rng = random.Random(5)
    head = [rng.randrange(3, policy.config.vocab_size) for _ in range(shared)]
    return [
        head + [rng.randrange(3, policy.config.vocab_size) for _ in range(length - shared + i % 7)]
        for i in range(count)
    ]


def close(a, b, tolerance=1e-5):
    return len(a) == len(b) and all(abs(x - y) <= tolerance for x, y in zip(a, b, strict=True))


def alone(policy, prompt, **sampling):
    """The answer of an engine that serves nothing else and reuses nothing."""
    with Engine(policy, slots=1, max_len=128) as engine:
        return ask(engine, prompt, **sampling)[0]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_a_plain_forward(engine, policy, temperature):
    prompt = some_prompts(policy, 1)[0]
    got = ask(engine, prompt, max_tokens=30, temperature=temperature, seed=3)[0]
    want = logprobs_of(policy, prompt, got.token_ids, temperature or 1.0)
    assert close(got.logprobs, want)
    assert got.versions == [0] * len(got.token_ids)


def test_greedy_takes_the_likeliest(engine, policy):
    prompt = some_prompts(policy, 1)[0]
    got = ask(engine, prompt, max_tokens=10, temperature=0)[0]
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *got.token_ids]]))[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == got.token_ids


@pytest.mark.parametrize(("order", "slots"), sampled([(1, 3), (-1, 3), (1, 24), (-1, 24)], 1))
def test_neighbours_and_arrival_order_change_nothing(policy, order, slots):
    prompts = some_prompts(policy, 20)
    settings = [{"max_tokens": 5 + i % 9, "temperature": 0.5 + i % 3, "seed": i} for i in range(20)]
    jobs = list(enumerate(zip(prompts, settings, strict=True)))[::order]
    with Engine(policy, slots=slots, max_len=128) as engine:
        futures = {i: engine.submit(Request(p, Sampling(**s))) for i, (p, s) in jobs}
        got = {i: future.result(60)[0] for i, future in futures.items()}
    for i, (prompt, setting) in jobs:
        want = alone(policy, prompt, **setting)
        assert got[i].token_ids == want.token_ids
        assert close(got[i].logprobs, want.logprobs)
        assert close(got[i].logprobs, logprobs_of(policy, prompt, want.token_ids, setting["temperature"]))


def test_samples_of_a_group_share_their_prompt(policy):
    prompt = some_prompts(policy, 1, length=60)[0]
    with Engine(policy, slots=8, max_len=128) as engine:
        together = ask(engine, prompt, n=6, max_tokens=12, seed=9)
        assert [c.index for c in together] == list(range(6))
        assert engine.stats.reused_tokens == 5 * (len(prompt) - 1)
        assert engine.stats.prompt_tokens == 6 * len(prompt)
    assert len({tuple(c.token_ids) for c in together}) == 6
    assert together[0].token_ids == alone(policy, prompt, max_tokens=12, seed=9).token_ids
    for c in together:
        assert close(c.logprobs, logprobs_of(policy, prompt, c.token_ids))


def test_equal_prompts_of_different_requests_share_too(policy):
    prompt = some_prompts(policy, 1, length=60)[0]
    with Engine(policy, slots=8, max_len=128) as engine:
        held = engine.pause()
        held.result(10)
        futures = [engine.submit(Request(prompt, Sampling(max_tokens=4, seed=i))) for i in range(5)]
        engine.resume()
        got = [future.result(60)[0] for future in futures]
        assert engine.stats.reused_tokens == 4 * (len(prompt) - 1)
    for i, c in enumerate(got):
        assert c.token_ids == alone(policy, prompt, max_tokens=4, seed=i).token_ids


def test_the_next_turn_computes_only_what_is_new(policy):
    prompt = some_prompts(policy, 1)[0]
    with Engine(policy, slots=4, max_len=128) as engine:
        for seed in range(3):
            turn = ask(engine, prompt, max_tokens=6, seed=seed, ignore_eos=True)[0]
            assert close(turn.logprobs, logprobs_of(policy, prompt, turn.token_ids))
            prompt = [*prompt, *turn.token_ids, 5, 6, 7]
            before = engine.stats.reused_tokens
        last = ask(engine, prompt, max_tokens=6, seed=8)[0]
        assert last.reused == len(prompt) - 4 and engine.stats.reused_tokens - before == last.reused
    assert last.token_ids == alone(policy, prompt, max_tokens=6, seed=8).token_ids


def test_a_branch_leaves_the_conversation_it_branches_from(policy):
    prompt = some_prompts(policy, 1, length=50)[0]
    with Engine(policy, slots=4, max_len=128) as engine:
        first = ask(engine, prompt, max_tokens=6, seed=1, ignore_eos=True)[0]
        branch = ask(engine, [*prompt[:40], 9, 9], max_tokens=6, seed=2)[0]
        assert branch.reused == 40
        turn = ask(engine, [*prompt, *first.token_ids, 4], max_tokens=6, seed=3)[0]
        assert turn.reused == len(prompt) + 5
    assert branch.token_ids == alone(policy, [*prompt[:40], 9, 9], max_tokens=6, seed=2).token_ids


def test_many_turns_over_few_slots(policy):
    """Eviction, copies in both directions and in-place reuse, against an engine without any reuse."""
    rng = random.Random(0)
    talks = some_prompts(policy, 6, length=40, shared=20)
    with Engine(policy, slots=4, max_len=128) as engine:
        for turn in range(3):
            jobs = [(k, turn * 10 + k) for k in range(len(talks))]
            rng.shuffle(jobs)
            sampling = {"max_tokens": 5, "ignore_eos": True}
            futures = [
                (k, s, engine.submit(Request(talks[k], Sampling(**sampling, seed=s)))) for k, s in jobs
            ]
            for k, seed, future in futures:
                got = future.result(60)[0]
                assert got.token_ids == alone(policy, talks[k], seed=seed, **sampling).token_ids
                talks[k] = [*talks[k], *got.token_ids, 3 + k]
        assert engine.stats.reused_tokens > 0


def test_long_prompts_go_in_chunks(policy, monkeypatch):
    monkeypatch.setattr("agl_local.generation.prefill._CHUNK", 16)
    prompts = some_prompts(policy, 3, length=50)
    with Engine(policy, slots=4, max_len=128) as engine:
        futures = [
            engine.submit(Request(p, Sampling(max_tokens=5, seed=1))) for p in [*prompts, prompts[0][:9]]
        ]
        got = [future.result(60)[0] for future in futures]
    for prompt, c in zip(prompts, got, strict=False):
        assert close(c.logprobs, logprobs_of(policy, prompt, c.token_ids))


def test_further_tokens_may_end_an_answer(engine, policy):
    prompt = some_prompts(policy, 1)[0]
    whole = ask(engine, prompt, max_tokens=20, seed=4, ignore_eos=True)[0]
    end = whole.token_ids[6]
    cut = ask(engine, prompt, max_tokens=20, seed=4, ignore_eos=True, stop_ids=(end,))[0]
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
    assert cut.finish_reason == "stop" and whole.text.startswith(cut.text)


def test_seeds_reproduce_and_differ(engine, policy):
    prompt = some_prompts(policy, 1)[0]
    a, b, c = (ask(engine, prompt, max_tokens=20, seed=s)[0] for s in (1, 1, 2))
    assert a.token_ids == b.token_ids != c.token_ids
    free = ask(engine, prompt, max_tokens=20)[0]
    assert ask(engine, prompt, max_tokens=20, seed=free.seed)[0].token_ids == free.token_ids


def test_an_update_equals_a_cold_engine(policy):
    prompt = some_prompts(policy, 1, length=60)[0]
    other = small_policy(seed=1)
    with Engine(policy, slots=4, max_len=128) as engine:
        ask(engine, prompt, n=3, max_tokens=8, seed=1)
        for version, data in (
            (1, state(other.model)),
            (2, state(policy.model)),
            (7, state(other.model)),
        ):
            assert engine.load_weights(data, version, timeout=300) == version
        before = engine.stats.reused_tokens
        got = ask(engine, prompt, n=3, max_tokens=8, seed=1)
        assert engine.stats.reused_tokens - before == 2 * (len(prompt) - 1)
    with Engine(other, slots=4, max_len=128) as cold:
        want = ask(cold, prompt, n=3, max_tokens=8, seed=1)
    for a, b in zip(got, want, strict=True):
        assert a.token_ids == b.token_ids and a.logprobs == b.logprobs and set(a.versions) == {7}
        assert close(a.logprobs, logprobs_of(other, prompt, a.token_ids))


def test_the_engine_has_its_own_copy_of_the_weights():
    policy = small_policy(seed=4)
    prompt = some_prompts(policy, 1)[0]
    with Engine(policy, slots=2, max_len=64) as engine:
        before = ask(engine, prompt, max_tokens=4, seed=1)[0]
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.zero_()
        assert close(ask(engine, prompt, max_tokens=4, seed=1)[0].logprobs, before.logprobs)


def test_two_policies_are_two_engines(policy):
    other = small_policy(seed=1, arch="llama")
    prompt = some_prompts(policy, 1)[0]
    with (
        Engine(policy, slots=4, max_len=64, name="a") as a,
        Engine(other, slots=4, max_len=64, name="b") as b,
    ):
        futures = [e.submit(Request(prompt, Sampling(max_tokens=9, seed=2), n=3)) for e in (a, b)]
        for p, future in zip((policy, other), futures, strict=True):
            for c in future.result(60):
                assert close(c.logprobs, logprobs_of(p, prompt, c.token_ids))


def test_end_tokens(policy):
    prompt = some_prompts(policy, 1)[0]
    eos = policy.tokenizer.eos_ids[0]
    with Engine(policy, slots=2, max_len=64) as engine:
        got = ask(engine, prompt, max_tokens=9, logit_bias={eos: 100.0}, min_tokens=3, seed=1)[0]
        assert got.finish_reason == "stop" and len(got.token_ids) == 4 and got.token_ids[-1] == eos
        assert got.text == policy.tokenizer.decode(got.token_ids[:-1], skip_special_tokens=True)
        got = ask(engine, prompt, max_tokens=5, logit_bias={eos: 100.0}, ignore_eos=True)[0]
        assert got.finish_reason == "length" and got.token_ids == [eos] * 5 and got.text == ""


def test_a_stop_string_across_tokens(engine, policy):
    answer = policy.tokenizer.encode("The answer is ANSWER: 42, they say")
    text = "The answer is ANSWER: 42, they say"
    got = ask(engine, answer, max_tokens=60, guided_choice=(tuple(answer),), stop=("WER: 4",))[0]
    assert got.text == text[: text.index("WER: 4")]
    assert (got.finish_reason, got.stop_reason) == ("stop", "WER: 4")
    assert policy.tokenizer.decode(got.token_ids).startswith(text[: text.index("2,")])
    whole = ask(engine, answer, max_tokens=60, guided_choice=(tuple(answer),), stop=("never",))[0]
    assert whole.text == text and whole.stop_reason is None


def test_guided_choice_samples_answers_by_their_probability(engine, policy):
    tok = policy.tokenizer
    choices = tuple(tuple(tok.encode(text)) for text in ("yes", "yes and no", "no"))
    prompt = tok.encode("The user")
    got = ask(engine, prompt, n=40, max_tokens=20, guided_choice=choices, seed=0)
    assert {c.text for c in got} <= {"yes", "yes and no", "no"} and len({c.text for c in got}) > 1
    sampling = Sampling(guided_choice=choices)
    for c in got:
        assert c.finish_reason == "stop" and c.token_ids[-1] in tok.eos_ids
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*prompt, *c.token_ids]]))[0, len(prompt) - 1 : -1]
        for i, token in enumerate(c.token_ids):
            row = adjusted(logits[i], sampling, prompt, c.token_ids[:i], tok.eos_ids)
            assert float(row[token]) == pytest.approx(c.logprobs[i], abs=1e-4)


def test_penalties_and_truncation_in_a_batch(engine, policy):
    prompt = some_prompts(policy, 1)[0]
    settings = [
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5, "temperature": 0.0},
        {"top_k": 1},
        {"top_p": 0.3, "temperature": 0.8},
        {},
    ]
    futures = [engine.submit(Request(prompt, Sampling(max_tokens=12, seed=4, **s))) for s in settings]
    results = [future.result(60)[0] for future in futures]
    for setting, got in zip(settings, results, strict=True):
        want = alone(policy, prompt, max_tokens=12, seed=4, **setting)
        assert got.token_ids == want.token_ids and close(got.logprobs, want.logprobs)
    assert results[2].token_ids == alone(policy, prompt, max_tokens=12, temperature=0).token_ids
    assert results[2].logprobs == [0.0] * len(results[2].token_ids)  # of what they were drawn from: one token
    nucleus = Sampling(temperature=0.8)
    with torch.no_grad():
        tokens = results[3].token_ids
        logits = policy.model(torch.tensor([[*prompt, *tokens]]))[0, len(prompt) - 1 : -1]
    cut = [truncate(adjusted(row, nucleus, prompt, tokens, ()), 0, 0.3) for row in logits]
    want = [float(torch.log_softmax(row, 0)[t]) for row, t in zip(cut, tokens, strict=True)]
    assert close(results[3].logprobs, want)
    sampling = Sampling(repetition_penalty=1.5)
    with torch.no_grad():
        tokens = results[0].token_ids
        logits = policy.model(torch.tensor([[*prompt, *tokens]]))[0, len(prompt) - 1 : -1]
    want = [float(adjusted(logits[i], sampling, prompt, tokens[:i], ())[t]) for i, t in enumerate(tokens)]
    assert close(results[0].logprobs, want)


def test_alternatives(engine, policy):
    prompt = some_prompts(policy, 1)[0]
    plain, asked = (
        engine.submit(Request(prompt, Sampling(max_tokens=4, temperature=0, top_logprobs=k))) for k in (0, 3)
    )
    assert plain.result(60)[0].top_logprobs == [[]] * 4
    got = asked.result(60)[0]
    for token, logprob, top in zip(got.token_ids, got.logprobs, got.top_logprobs, strict=True):
        assert len(top) == 3 and top[0][0] == token and top[0][1] == pytest.approx(logprob)
        assert top[0][1] >= top[1][1] >= top[2][1]


def test_token_events_add_up_to_the_completion(engine, policy):
    events = []
    prompt = some_prompts(policy, 1)[0]
    request = Request(prompt, Sampling(max_tokens=15, seed=1, top_logprobs=1), n=3, on_token=events.append)
    for c in engine.submit(request).result(60):
        mine = [e for e in events if e.index == c.index]
        assert [e.token for e in mine] == c.token_ids and [e.logprob for e in mine] == c.logprobs
        assert "".join(e.text for e in mine) == c.text
        assert [e.finish_reason for e in mine] == [None] * (len(mine) - 1) + [c.finish_reason]


async def test_generate_is_submit_for_asyncio(engine, policy):
    prompts = some_prompts(policy, 4)
    got = await asyncio.gather(
        *(engine.generate(Request(p, Sampling(max_tokens=3, seed=i))) for i, p in enumerate(prompts))
    )
    for i, (prompt, result) in enumerate(zip(prompts, got, strict=True)):
        assert result[0].token_ids == alone(policy, prompt, max_tokens=3, seed=i).token_ids


def test_max_tokens_ends_at_the_room_there_is(policy):
    prompt = some_prompts(policy, 1, length=30)[0]
    with Engine(policy, slots=2, max_len=34) as engine:
        got = ask(engine, prompt, max_tokens=1000, ignore_eos=True)[0]
        assert len(got.token_ids) == 4 and got.finish_reason == "length"


def test_status_counts(engine, policy):
    ask(engine, some_prompts(policy, 1)[0], n=2, max_tokens=5, ignore_eos=True)
    status = engine.status()
    assert status["generated_tokens"] == 10 and status["finished"] == 2 and status["requests"] == 1
    assert status["running"] == status["waiting"] == 0 and status["steps"] >= 5 and status["closed"] is None
