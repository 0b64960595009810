"""The deterministic engine: the same request gives the same bits, whatever else is served and however.

Everything here compares with ``==``: one wrong last bit fails.
"""

from __future__ import annotations

import json
import random
import threading
import urllib.request
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings, strategies as st
from marks import examples, sampled

from agl_local.generation.engine import Completion, Engine, EngineError, Request
from agl_local.http.process import EngineProcess
from agl_local.network.sampling import Sampling
from agl_local.network.tile import Tiles, Token
from agl_local.policy.folder import Policy, load_policy, save_policy, state
from plugins.local.tests.engine_fixtures import logprobs_of, small_policy

CALC_X = Path(__file__).parents[3] / "examples" / "calc_x" / "policy"
MAX_LEN = 256
SETTINGS: list[dict[str, object]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.8},
    {"top_k": 5, "top_logprobs": 3},
    {"temperature": 1.3, "top_p": 0.5, "top_k": 20},
    {"repetition_penalty": 1.4, "frequency_penalty": 0.6, "presence_penalty": 0.3},
    {"logit_bias": {7: 3.0, 11: -2.0}, "min_tokens": 2},
    {"guided_choice": ((5, 6, 7), (5, 9), (40,))},
    {"stop": ("e",)},
    {"temperature": 0.9},
]
Bits = list[tuple[list[int], list[float], object, str, str]]


@cache
def policy_named(name: str) -> Policy:
    if name == "calc_x":
        return load_policy(CALC_X)
    return small_policy(arch=name, tied=name == "llama")  # type: ignore[arg-type]


def bits(completions: Sequence[Completion]) -> Bits:
    """All of an answer that must not change: floats as they are."""
    return [(c.token_ids, c.logprobs, c.top_logprobs, c.text, c.finish_reason) for c in completions]


def alone(policy: Policy, request: Request) -> list[Completion]:
    """From an engine of its own: nothing is shared with, or taken from, anybody."""
    with Engine(policy, slots=max(1, request.n), max_len=MAX_LEN, deterministic=True, threads=1) as engine:
        return engine.submit(request).result(60)


class Load(NamedTuple):
    """Requests and what each gives when it is alone."""

    policy: Policy
    requests: list[Request]
    wanted: list[Bits]


@cache
def load_of(name: str) -> Load:
    """40 requests: prompts of 1 to 230 tokens, shared beginnings, groups, second turns, all settings."""
    policy, rng = policy_named(name), random.Random(3)
    draw = lambda n: [rng.randrange(3, policy.config.vocab_size) for _ in range(n)]  # noqa: E731
    heads = [draw(40), draw(130)]
    requests, answers = [], []
    for i in range(30):
        kind = i % 3
        prompt = draw(rng.choice([1, 2, 15, 16, 17, 60, 127, 128, 200])) if kind == 0 else []
        prompt = prompt or heads[kind - 1] + draw(rng.randrange(1, 90))
        sampling = Sampling(max_tokens=rng.randrange(3, 12), seed=i, **SETTINGS[i % len(SETTINGS)])  # type: ignore[arg-type]
        requests.append(Request(prompt, sampling, n=rng.choice([1, 1, 1, 3])))
        answers.append(alone(policy, requests[-1]))
    for i in range(10):
        before, said = requests[i], answers[i][0]
        turn = [*before.prompt, *said.token_ids, *draw(rng.randrange(1, 10))]
        requests.append(replace(before, prompt=turn, sampling=replace(before.sampling, seed=90 + i)))
        answers.append(alone(policy, requests[-1]))
    return Load(policy, requests, [bits(a) for a in answers])


def engine_of(load: Load, slots: int = 16, threads: int = 1) -> Engine:
    return Engine(load.policy, slots=slots, max_len=MAX_LEN, deterministic=True, threads=threads)


def ask_all(engine: Engine, load: Load, order: Sequence[int]) -> dict[int, Bits]:
    futures = {i: engine.submit(load.requests[i]) for i in order}
    return {i: bits(future.result(60)) for i, future in futures.items()}


def compare(load: Load, got: dict[int, Bits]) -> None:
    for i, found in got.items():
        assert found == load.wanted[i], f"request {i}"


NAMES = ["qwen2", "qwen3", "llama", "calc_x", "smollm3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "slots"), sampled([(name, slots) for slots in (4, 1, 64) for name in NAMES], 0)
)
def test_all_at_once_in_any_order_with_any_number_of_slots(name, slots):
    load = load_of(name)
    order = list(range(len(load.requests)))
    random.Random(slots).shuffle(order)
    with engine_of(load, slots) as engine:
        compare(load, ask_all(engine, load, order))
        assert engine.stats.reused_tokens > 0
        # Once more, where the cache holds what all of them have left.
        compare(load, ask_all(engine, load, order[::-1]))


@pytest.mark.parametrize("name", sampled(NAMES, 0))
def test_one_after_the_other(name):
    load = load_of(name)
    with engine_of(load, slots=8) as engine:
        for i in range(len(load.requests)):
            compare(load, ask_all(engine, load, [i]))
        assert engine.stats.reused_tokens > 0


@pytest.mark.slow
def test_two_threads_of_torch():
    """Its own reference: the promise is for one number of threads."""
    load = load_of("calc_x")
    with engine_of(load, slots=2, threads=2) as engine:
        first = ask_all(engine, load, range(6))
    with engine_of(load, slots=64, threads=2) as engine:
        assert ask_all(engine, load, range(5, -1, -1)) == first


@pytest.mark.slow
def test_the_room_of_the_engine_changes_nothing():
    load = load_of("qwen2")
    few = [i for i, r in enumerate(load.requests) if len(r.prompt) + r.sampling.max_tokens <= 100]
    assert len(few) > 5
    with Engine(load.policy, slots=3, max_len=100, deterministic=True, threads=1) as engine:
        compare(load, ask_all(engine, load, few))


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["qwen2", "calc_x"], 0))
def test_a_hold_for_the_same_weights_changes_nothing(name):
    """Requests stop where they are, and what they have is computed again, in another grouping of tokens."""
    load = load_of(name)
    running = threading.Event()
    tokens = []

    def notice(_: object) -> None:
        tokens.append(1)
        if len(tokens) == 5:
            running.set()

    with engine_of(load) as engine:
        futures = {i: engine.submit(replace(r, on_token=notice)) for i, r in enumerate(load.requests)}
        assert running.wait(300)
        for version in (1, 2):
            engine.load_weights(state(load.policy.model), version, mode="hold", timeout=300)
        got = {i: bits(future.result(60)) for i, future in futures.items()}
    compare(load, got)


@pytest.mark.slow
def test_after_an_update_it_is_a_fresh_engine_of_the_new_weights():
    load, other = load_of("qwen2"), small_policy(seed=5)
    with Engine(other, slots=8, max_len=MAX_LEN, deterministic=True, threads=1) as engine:
        before = ask_all(engine, load, range(10))
        engine.load_weights(state(load.policy.model), 1, timeout=300)
        compare(load, ask_all(engine, load, range(40)))
    assert all(before[i] != load.wanted[i] for i in before)


@pytest.mark.slow
def test_after_a_failed_pass_and_broken_weights_it_is_as_before(monkeypatch):
    load = load_of("qwen2")
    broken = {name: tensor * torch.nan for name, tensor in state(load.policy.model).items()}
    with engine_of(load) as engine:
        tiles, calls = engine._passes.tiles, []

        def hidden(tokens: Sequence[Token]) -> torch.Tensor:
            calls.append(1)
            if len(calls) == 20:
                raise RuntimeError("out of memory")
            return Tiles.hidden(tiles, tokens)

        monkeypatch.setattr(tiles, "hidden", hidden)
        futures = [engine.submit(request) for request in load.requests]
        failures = [future.exception(60) for future in futures]
        assert len(calls) > 20 and any("out of memory" in str(f) for f in failures)
        got = {i: bits(f.result()) for i, (f, e) in enumerate(zip(futures, failures, strict=True)) if not e}
        compare(load, got)
        engine.load_weights(broken, 1, timeout=300)
        with pytest.raises(EngineError, match="no finite logits"):
            engine.submit(load.requests[0]).result(60)
        engine.load_weights(state(load.policy.model), 2, timeout=300)
        compare(load, ask_all(engine, load, range(40)))


@pytest.mark.slow
def test_streamed_tokens_are_those_of_the_answer():
    load = load_of("qwen2")
    events = []
    with engine_of(load) as engine:
        futures = [engine.submit(replace(r, on_token=events.append)) for r in load.requests[:3]]
        [future.result(60) for future in futures]
    wanted = [pair for want in load.wanted[:3] for one in want for pair in zip(one[0], one[1], strict=True)]
    assert sorted((e.token, e.logprob) for e in events) == sorted(wanted)


@pytest.mark.parametrize("name", sampled(NAMES, 0))
def test_the_trainer_sees_what_the_engine_saw(name):
    load = load_of(name)
    plain = [i for i, r in enumerate(load.requests) if set(SETTINGS[r.sampling.seed % 10]) <= {"temperature"}]
    for i in plain:
        request = load.requests[i]
        for tokens, logprobs, *_ in load.wanted[i]:
            want = logprobs_of(load.policy, [*request.prompt], tokens, request.sampling.temperature or 1.0)
            assert logprobs == pytest.approx(want, abs=1e-4)


SCHEDULES = st.tuples(
    st.permutations(range(40)),
    st.integers(1, 20),
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.sets(st.integers(0, 39), max_size=8),
)


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None)
@given(SCHEDULES)
def test_any_schedule(schedule):
    """Waves of any size, some awaited before the next, and some requests given up by their clients."""
    order, slots, waves, given_up = schedule
    load = load_of("qwen2")
    futures: dict[int, Future[list[Completion]]] = {}
    with engine_of(load, slots) as engine:
        left = list(order)
        for at, size in enumerate([*waves, len(left)]):
            wave, left = left[:size], left[size:]
            futures |= {i: engine.submit(load.requests[i]) for i in wave}
            for i in given_up & set(wave):
                futures[i].cancel()
            if at % 2 and wave and wave[0] not in given_up:
                futures[wave[0]].result(60)
        got = {}
        for i, future in futures.items():
            try:
                got[i] = bits(future.result(60))
            except CancelledError:
                assert i in given_up
    assert len(got) >= 40 - len(given_up)
    compare(load, got)


@pytest.mark.slow
def test_another_process_gives_the_same_bits(tmp_path):
    load = load_of("qwen2")
    folder = save_policy(load.policy, tmp_path)
    plain = [i for i, r in enumerate(load.requests) if r.sampling.seed % 10 in (0, 1, 2, 4, 9)]
    with EngineProcess(folder, slots=2, max_len=MAX_LEN, threads=1, deterministic=True) as child:
        for i in plain:
            request, s = load.requests[i], load.requests[i].sampling
            body = {
                "model": "policy", "prompt": request.prompt, "n": request.n, "seed": s.seed, "logprobs": 0,
                "max_tokens": s.max_tokens, "temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k,
                "return_token_ids": True,
            }  # fmt: skip
            post = urllib.request.Request(
                child.address + "/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(post, timeout=300) as answer:
                choices = json.load(answer)["choices"]
            got = [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in choices]
            assert got == [(tokens, logprobs) for tokens, logprobs, *_ in load.wanted[i]]
