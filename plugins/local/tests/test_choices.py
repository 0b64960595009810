"""Guided choices decided in one pass: the draws of decoding, without its passes."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import torch

from agl_local.generation import choices
from agl_local.generation.choices import ChoiceTables
from agl_local.generation.engine import Completion, Engine, EngineError, Request
from agl_local.network.hf import TransformersLM
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import Policy, state
from plugins.local.tests.engine_fixtures import ask, small_policy
from plugins.local.tests.test_hf import gpt2

POLICY = small_policy()
EOS = POLICY.tokenizer.eos_ids
CHOICES = ((5, 6, 7), (5, 9), (40,), (5, 6, 200))
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def engine_of(**fields: Any) -> Engine:
    return Engine(POLICY, **{"slots": 8, "max_len": 512, **fields})


def together(engine: Engine, *requests: Request) -> list[list[Completion]]:
    """All submitted before the engine takes any."""
    paused = engine.pause()
    futures = [engine.submit(request) for request in requests]
    paused.result(60)
    engine.resume()
    return [future.result(60) for future in futures]


def asked(prompt: list[int] = PROMPT, n: int = 6, **fields: Any) -> Request:
    return Request(prompt, Sampling(**{"max_tokens": 8, "guided_choice": CHOICES, **fields}), n=n)


def decoded(*requests: Request, **fields: Any) -> list[list[Completion]]:
    """What decoding gives: the same engine without tables."""
    with engine_of(**fields) as engine:
        engine._passes.choices = None
        return together(engine, *requests)


REQUESTS = (
    asked(seed=1),
    asked([*PROMPT[:5], 30], seed=2, temperature=0.3, top_logprobs=4),
    asked(seed=3, temperature=0.0),
    asked([7], seed=4, top_k=1, guided_choice=((5,), (5, 6), (5, 6, 7))),
    asked(seed=5, top_p=0.4, max_tokens=2),
    asked(seed=6, guided_choice=((11, 12),)),
)


@pytest.mark.parametrize("nodes", [1024, 12])
def test_answers_are_those_of_decoding(monkeypatch, nodes):
    monkeypatch.setattr(choices, "_NODES", nodes)
    with engine_of() as engine:
        got, steps = together(engine, *REQUESTS), engine.stats.steps
    assert steps == (1 if nodes == 1024 else 2)
    for mine, theirs in zip(got, decoded(*REQUESTS), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
            for one, other in zip(a.top_logprobs, b.top_logprobs, strict=True):
                assert dict(one) == pytest.approx(dict(other), abs=1e-5)


def test_a_group_that_comes_one_by_one_is_computed_once():
    with engine_of() as engine:
        done = [ask(engine, PROMPT, max_tokens=8, guided_choice=CHOICES, seed=seed)[0] for seed in range(6)]
        assert engine.stats.steps == 1 and engine.status()["finished"] == 6
        assert [one.reused for one in done] == [0, *[len(PROMPT)] * 5]
        assert engine.stats.prompt_tokens - engine.stats.reused_tokens == len(PROMPT)


def test_the_next_turn_finds_the_prompt_in_the_cache():
    with engine_of() as engine:
        first = ask(engine, PROMPT, max_tokens=8, guided_choice=CHOICES, seed=1)[0]
        longer = [*PROMPT, *first.token_ids, 20, 21]
        second = ask(engine, longer, max_tokens=8, ignore_eos=True, seed=2)[0]
        third = ask(engine, [*longer, *second.token_ids, 22], max_tokens=8, guided_choice=CHOICES, seed=3)[0]
    assert second.reused == len(PROMPT)
    assert third.reused >= len(longer), "what is mostly cached is decoded"
    with engine_of() as engine:
        fresh = ask(engine, longer, max_tokens=8, ignore_eos=True, seed=2)[0]
    assert fresh.token_ids == second.token_ids
    assert fresh.logprobs == pytest.approx(second.logprobs, abs=1e-5)


def test_without_an_idle_slot_nothing_is_kept_and_nothing_waits():
    with engine_of(slots=1) as engine:
        busy = engine.submit(Request([9, 8], Sampling(max_tokens=200, ignore_eos=True, seed=1)))
        while not engine.status()["running"]:
            pass
        done = ask(engine, PROMPT, n=3, max_tokens=8, guided_choice=CHOICES, seed=1)
        assert len(done) == 3 and not busy.done(), "choices need no slot"
        whole = busy.result(60)[0]
    with engine_of(slots=1) as engine:
        alone = ask(engine, [9, 8], max_tokens=200, ignore_eos=True, seed=1)[0]
    assert whole.token_ids == alone.token_ids


def test_tables_go_with_the_weights():
    with engine_of() as engine:
        ask(engine, PROMPT, max_tokens=8, guided_choice=CHOICES, seed=1)
        changed = {name: torch.randn_like(p) for name, p in state(POLICY.model).items()}
        assert engine.load_weights(changed, 1, timeout=300) == 1
        after = ask(engine, PROMPT, max_tokens=8, guided_choice=CHOICES, seed=1)[0]
        assert engine.stats.steps == 2 and set(after.versions) == {1}


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.5},
        {"logit_bias": {5: 1.0}},
        {"guided_choice": tuple((i, 1) for i in range(200))},
        {"prompt": list(range(1, 100))},
    ],
)
def test_what_one_pass_does_not_decide_is_decoded(monkeypatch, fields):
    monkeypatch.setattr(choices, "_SHORT", 50)
    monkeypatch.setattr(ChoiceTables, "logits", lambda *_: pytest.fail("taken"))
    prompt = fields.pop("prompt", PROMPT)
    with engine_of() as engine:
        done = ask(engine, prompt, seed=1, **{"max_tokens": 8, "guided_choice": CHOICES, **fields})
    assert done[0].token_ids


def test_more_requests_than_tables_are_kept(monkeypatch):
    monkeypatch.setattr(choices, "_KEPT", 4)
    monkeypatch.setattr("agl_local.generation.engine.AT_ONCE", 2)
    requests = [asked([*PROMPT, i], n=1, seed=i) for i in range(20)]
    with engine_of() as engine:
        assert len(together(engine, *requests)) == 20
        assert engine._passes.choices is not None and len(engine._passes.choices._known) <= 4


def test_a_network_of_transformers_decodes():
    model = TransformersLM(gpt2().eval())
    with Engine(Policy(model, POLICY.tokenizer, model.config), slots=2, max_len=32) as engine:
        assert engine._passes.choices is None


def broken(*_: object) -> None:
    raise RuntimeError("broken")


def test_a_pass_that_fails_fails_what_was_in_it_alone(monkeypatch):
    with engine_of() as engine:
        with monkeypatch.context() as patch:
            patch.setattr("agl_local.generation.choices.read_states", broken)
            with pytest.raises(EngineError, match="broken"):
                ask(engine, PROMPT, max_tokens=8, guided_choice=CHOICES)
        assert ask(engine, PROMPT, max_tokens=8, guided_choice=CHOICES)[0].reused == 0


def test_a_cancelled_choice_frees_what_it_had():
    with engine_of() as engine:
        paused = engine.pause()
        future: Future[list[Completion]] = engine.submit(asked())
        paused.result(60)
        assert future.cancel()
        engine.resume()
        assert ask(engine, PROMPT, max_tokens=8, guided_choice=CHOICES)[0].token_ids
        assert engine.status()["running"] == engine.status()["waiting"] == 0
