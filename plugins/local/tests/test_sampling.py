from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from agl_local.network.sampling import (
    Sampling,
    adjusted,
    allowed_next,
    draw,
    splitmix64,
    stream_key,
    truncate,
    uniform,
)


def test_splitmix64_reference_values():
    # First outputs of the published generator seeded with 1234567.
    state, want = 1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = []
    for _ in want:
        got.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert got == want


def test_uniforms_are_spread_and_differ_by_seed_sample_and_position():
    numbers = torch.tensor([uniform(stream_key(s, 0), p) for s in range(50) for p in range(50)])
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = torch.histc(numbers, 10, 0, 1)
    assert ((counts - 250).abs() < 75).all()  # 5 standard deviations of a count
    assert len({stream_key(s, i) for s in range(100) for i in range(100)}) == 10000


def test_draw_follows_the_distribution():
    logprobs = torch.tensor([0.1, 0.0, 0.6, 0.3]).log()
    u = torch.arange(1000, dtype=torch.float64) / 1000
    counts = torch.bincount(draw(logprobs.expand(1000, 4), u), minlength=4)
    assert (counts - torch.tensor([100, 0, 600, 300])).abs().max() <= 1


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_draw_never_gives_a_forbidden_token(u):
    logprobs = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    assert draw(logprobs, torch.tensor([u], dtype=torch.float64)).tolist() == [1]


def test_top_k_and_top_p():
    logprobs = torch.tensor([0.5, 0.05, 0.3, 0.15]).log()
    assert truncate(logprobs, 2, 1.0).isfinite().tolist() == [True, False, True, False]
    assert truncate(logprobs, 0, 0.75).isfinite().tolist() == [True, False, True, False]
    assert truncate(logprobs, 0, 0.81).isfinite().tolist() == [True, False, True, True]
    assert truncate(logprobs, 0, 1e-9).isfinite().tolist() == [True, False, False, False]
    # top-p counts what top-k has left as the whole
    assert truncate(logprobs, 2, 0.62).isfinite().tolist() == [True, False, False, False]
    assert torch.equal(truncate(logprobs, 0, 1.0), logprobs)


def test_penalties_by_hand():
    logits = torch.tensor([2.0, -2.0, 1.0, 0.0])
    s = Sampling(frequency_penalty=0.5, presence_penalty=0.25)
    want = torch.log_softmax(torch.tensor([2.0, -2.0, 1.0 - 0.25 - 1.0, -0.75]), -1)
    assert torch.allclose(adjusted(logits, s, [0, 1], [2, 2, 3], [9]), want)
    s = Sampling(repetition_penalty=2.0)
    want = torch.log_softmax(torch.tensor([1.0, -4.0, 1.0, 0.0]), -1)
    assert torch.allclose(adjusted(logits, s, [0], [1], [9]), want)


def test_temperature_bias_and_min_tokens():
    logits = torch.tensor([2.0, 1.0, 0.0])
    got = adjusted(logits, Sampling(temperature=0.5, logit_bias={2: 1.0}), [0], [], [9])
    assert torch.allclose(got, torch.log_softmax(torch.tensor([4.0, 2.0, 2.0]), -1))
    got = adjusted(logits, Sampling(min_tokens=1), [0], [], [0])
    assert torch.allclose(got[1:], torch.log_softmax(logits[1:], -1)) and got[0] == -torch.inf
    assert torch.allclose(
        adjusted(logits, Sampling(temperature=0), [0], [], []), torch.log_softmax(logits, -1)
    )


def test_guided_choice_allows_what_continues_an_answer():
    choices = [(1, 2), (1, 3, 4), (1,)]
    assert allowed_next(choices, [], [9, 8]) == [1]
    assert allowed_next(choices, [1], [9, 8]) == [2, 3, 9]
    assert allowed_next(choices, [1, 3], [9]) == [4]
    assert allowed_next(choices, [1, 2], [9]) == [9]
    assert allowed_next(choices, [1, 2], []) == []
    assert allowed_next(choices, [1, 9], [9]) == []
    got = adjusted(torch.randn(10), Sampling(guided_choice=tuple(choices)), [0], [1], [9])
    assert got.isfinite().nonzero()[:, 0].tolist() == [2, 3, 9] and got.exp().sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0}, {"temperature": -1}, {"temperature": float("inf")}, {"temperature": float("nan")},
        {"top_p": 0}, {"top_p": 1.1}, {"top_k": -2}, {"frequency_penalty": 3}, {"presence_penalty": -3},
        {"repetition_penalty": 0}, {"min_tokens": 17}, {"top_logprobs": -1}, {"stop": ("",)},
        {"guided_choice": ()}, {"guided_choice": ((),)}, {"guided_choice": ((1,),), "ignore_eos": True},
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampling(**bad)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30), st.floats(0, 1, exclude_max=True))
def test_draw_is_the_inverse_of_the_cumulated_distribution(logits, u):
    logprobs = torch.log_softmax(torch.tensor(logits), -1)
    token = int(draw(logprobs[None], torch.tensor([u], dtype=torch.float64))[0])
    cdf = logprobs.exp().double().cumsum(0)
    below = 0.0 if token == 0 else float(cdf[token - 1])
    assert below <= u * float(cdf[-1]) + 1e-12 and u * float(cdf[-1]) <= float(cdf[token])
