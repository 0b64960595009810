from __future__ import annotations

import copy
import math

import pytest
import torch
from plugins.local.driver_fixtures import gradients, reference_logprobs, relative, tiny_model, tiny_tokenizer

from agl_local.dpo import Pair, answer_logprobs, dpo_backward, dpo_loss, encode_pair, train_dpo
from agl_local.sft import Sample


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def pairs() -> list[Pair]:
    return [
        Pair(Sample((1, 2, 7, 8), (2, 3)), Sample((1, 2, 9), (2,))),
        Pair(Sample((4, 5, 6, 7, 8), (3, 4)), Sample((4, 5, 6, 1, 2), (3, 4))),
        Pair(Sample((3, 7), (1,)), Sample((3, 9, 9, 9), (1, 2, 3))),
    ]


def test_hand_numbers() -> None:
    # Policy gives the chosen answer 0.4 (reference 0.2), the rejected one 0.1 (reference 0.2): log ratios
    # ln 2 and -ln 2, so the margin is beta * 2 ln 2 and sigma(margin) = 4^beta / (1 + 4^beta).
    loss, margin = dpo_loss(logs(0.4), logs(0.1), logs(0.2), logs(0.2), beta=0.5)
    assert margin.item() == pytest.approx(math.log(2))
    assert loss.item() == pytest.approx(-math.log(2 / 3))
    smooth, _ = dpo_loss(logs(0.4), logs(0.1), logs(0.2), logs(0.2), beta=0.5, smoothing=0.1)
    assert smooth.item() == pytest.approx(-0.9 * math.log(2 / 3) - 0.1 * math.log(1 / 3))


def test_gradient_is_beta_sigma_of_the_wrong_way() -> None:
    chosen = logs(0.4).requires_grad_()
    rejected = logs(0.1).requires_grad_()
    dpo_loss(chosen, rejected, logs(0.2), logs(0.2), beta=0.5)[0].sum().backward()
    assert chosen.grad is not None and rejected.grad is not None
    assert chosen.grad.item() == pytest.approx(-0.5 / 3)
    assert rejected.grad.item() == pytest.approx(0.5 / 3)


def test_answers_are_scored_whole() -> None:
    model = tiny_model()
    found = answer_logprobs(model, [pair.rejected for pair in pairs()]).tolist()
    for value, pair in zip(found, pairs(), strict=True):
        known = reference_logprobs(model, pair.rejected.ids)
        assert value == pytest.approx(sum(known[t] for t in pair.rejected.trained), abs=1e-5)


def test_at_the_reference_the_loss_is_log_two_and_micro_batches_do_not_matter() -> None:
    model = tiny_model()
    reference = copy.deepcopy(model)
    found = []
    for micro in (1, 20, 1000):
        model.zero_grad()
        metrics = dpo_backward(model, reference, pairs(), beta=0.3, micro_tokens=micro)
        assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)
        found.append(gradients(model))
    assert relative(found[0], found[2]) < 1e-5 and relative(found[1], found[2]) < 1e-5


def test_training_prefers_what_was_chosen() -> None:
    model = tiny_model()
    before = answer_logprobs(model, [p.chosen for p in pairs()]) - answer_logprobs(
        model, [p.rejected for p in pairs()]
    )
    seen: list[int] = []
    metrics = train_dpo(
        model, pairs(), steps=15, batch_size=3, lr=3e-3, progress=lambda step, _: seen.append(step)
    )
    after = answer_logprobs(model, [p.chosen for p in pairs()]) - answer_logprobs(
        model, [p.rejected for p in pairs()]
    )
    assert bool((after > before).all()) and metrics["accuracy"] == 1.0 and metrics["loss"] < math.log(2)
    assert seen == list(range(15)) and metrics["steps_skipped"] == 0


def test_pairs_are_encoded_as_answers_to_one_prompt() -> None:
    tokenizer = tiny_tokenizer()
    prompt = [{"role": "user", "content": "hi"}]
    answers = [{"role": "assistant", "content": text} for text in ("yes", "no")]
    pair = encode_pair(tokenizer, prompt, *answers)
    for sample, text in ((pair.chosen, "yes<|im_end|>"), (pair.rejected, "no<|im_end|>")):
        assert tokenizer.decode([sample.ids[t] for t in sample.trained]) == text
        assert list(sample.ids[: sample.trained[0]]) == tokenizer.apply(prompt)
