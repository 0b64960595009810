"""Answers confined to a few tokens, of which alone logits are computed."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch

from agl_local.generation.confined import Logits, confined_to
from agl_local.generation.engine import Engine, Request
from agl_local.generation.request import Group, Sample
from agl_local.generation.sampler import sample_batch
from agl_local.network.hf import TransformersLM
from agl_local.network.sampling import Sampling
from agl_local.text.textstream import TextStream
from plugins.local.tests.engine_fixtures import ask, small_policy
from plugins.local.tests.test_hf import VOCAB, gpt2

CHOICES = ((5, 6, 7), (5, 9), (40,), (5, 6, 200))
POLICY = small_policy()
EOS = POLICY.tokenizer.eos_ids


def samples_of(*settings: dict[str, object], tokens: tuple[int, ...] = ()) -> list[Sample]:
    found = []
    for seed, fields in enumerate(settings):
        request = Request([1, 2, 3], Sampling(max_tokens=8, **fields))  # type: ignore[arg-type]
        sample = Sample(Group(request, seed, Future()), 0, 8, TextStream(POLICY.tokenizer))
        sample.tokens.extend(tokens)
        found.append(sample)
    return found


@pytest.mark.parametrize("tokens", [(), (5,), (5, 6), (40,)])
def test_draws_and_logprobs_are_those_of_the_whole_vocabulary(tokens):
    guided = {"guided_choice": CHOICES}
    samples = samples_of(
        guided,
        {**guided, "temperature": 0.0},
        {**guided, "temperature": 0.3, "top_logprobs": 4},
        {**guided, "top_k": 1},
        {**guided, "top_p": 0.4},
        {"guided_choice": ((*tokens, 11),)},
        *[guided] * 30,
        tokens=tokens,
    )
    logits = torch.randn(len(samples), POLICY.config.vocab_size) * 3
    ids = confined_to(samples, EOS)
    assert ids == sorted(ids) and 0 < len(ids) <= 5
    only = torch.tensor(ids)
    want, got = (
        sample_batch(Logits(logits), samples, EOS),
        sample_batch(Logits(logits[:, only], only.tolist()), samples, EOS),
    )
    assert got.tokens == want.tokens and set(got.tokens) <= set(ids)
    assert got.logprobs == pytest.approx(want.logprobs, abs=1e-6)
    for mine, theirs in zip(got.top, want.top, strict=True):
        assert [token for token, _ in mine] == [token for token, _ in theirs]
        assert [p for _, p in mine] == pytest.approx([p for _, p in theirs], abs=1e-6)
    assert len(got.top[2]) >= 1 and not got.top[0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"guided_choice": CHOICES, "repetition_penalty": 1.5},
        {"guided_choice": CHOICES, "presence_penalty": 0.5},
        {"guided_choice": CHOICES, "logit_bias": {5: 3.0}},
        {"guided_choice": tuple((i, 1) for i in range(1025))},
        {"min_tokens": 2},
    ],
)
def test_what_needs_other_logits_gets_all(settings):
    assert confined_to(samples_of({"guided_choice": CHOICES}, settings), EOS) is None


class Widths:
    """How many logits a row each step of an engine gives."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[int] = []
        self._step = engine._passes.model.step
        monkeypatch.setattr(engine._passes.model, "step", self._watched)

    def _watched(self, *args: object, **kwargs: object) -> torch.Tensor:
        out = self._step(*args, **kwargs)
        self.seen.append(out.shape[-1])
        return out


def test_only_what_is_wanted_is_computed_and_it_is_the_same(monkeypatch):
    asked = {"max_tokens": 6, "guided_choice": CHOICES, "top_logprobs": 3}
    with Engine(POLICY, slots=8, max_len=64) as engine:
        monkeypatch.setattr(engine._passes, "choices", None)  # they are decided in one pass otherwise
        widths = Widths(engine, monkeypatch)
        few = ask(engine, [1, 2, 3, 4], n=6, seed=3, **asked)
        assert widths.seen and max(widths.seen) <= 5
        whole = ask(engine, [1, 2, 3, 4], n=6, seed=3, logit_bias={300: 0.0}, **asked)
        assert max(widths.seen) == POLICY.config.vocab_size
        paused = engine.pause()
        beside = engine.submit(Request([9, 8, 7], Sampling(max_tokens=20, ignore_eos=True)))
        mixed = engine.submit(Request([1, 2, 3, 4], Sampling(seed=3, **asked), n=6))
        paused.result(60)
        engine.resume()
        beside.result(60)
        others = mixed.result(60)
    for a, b, c in zip(few, whole, others, strict=True):
        assert a.token_ids == b.token_ids == c.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
        assert a.logprobs == pytest.approx(c.logprobs, abs=1e-5)
        for one, other in zip(a.top_logprobs, b.top_logprobs, strict=True):
            assert dict(one) == pytest.approx(dict(other), abs=1e-5)


def test_a_grammar_confines_too(monkeypatch):
    with Engine(POLICY, slots=1, max_len=16) as engine:
        widths = Widths(engine, monkeypatch)
        grammar = engine.grammars.check('start: "12" | "34"')
        done = ask(engine, [1, 2, 3], max_tokens=8, grammar=grammar)[0]
    assert done.text in ("12", "34") and max(widths.seen) < 8


@torch.no_grad()
def test_a_network_of_transformers_gives_the_same_columns():
    model = TransformersLM(gpt2().eval())
    ids, positions, slots = torch.tensor([[1, 2, 3]]), torch.arange(3)[None], torch.tensor([0])
    only = torch.tensor([0, 3, VOCAB - 1])
    whole = model.step(ids, positions, model.new_cache(1, 16), slots)
    assert torch.equal(model.step(ids, positions, model.new_cache(1, 16), slots, only=only), whole[..., only])
