from __future__ import annotations

import pytest
import torch

from agl_local.text.tokenizer import ChatTokenizer
from agl_local.training.sft import ChatSample, encode_chat, sft_backward, train_sft
from plugins.local.tests.driver_fixtures import (
    TEMPLATE,
    gradients,
    relative,
    tiny_model,
    tiny_policy,
    tiny_tokenizer,
)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CHAT = [turn("user", "2+3"), turn("assistant", "five"), turn("user", "more"), turn("assistant", "six")]


def test_trains_each_answer_up_to_its_end_token_and_nothing_else() -> None:
    tokenizer = tiny_tokenizer()
    (sample,) = encode_chat(tokenizer, CHAT)
    assert tokenizer.decode([sample.ids[t] for t in sample.trained]) == "five<|im_end|>six<|im_end|>"
    prompt = tokenizer.apply(CHAT[:3])
    assert list(sample.ids[: len(prompt)]) == prompt  # what the engine is given for the second turn


def test_history_that_the_template_rewrites_starts_a_new_sequence() -> None:
    last_user = (
        "{% set ns = namespace(u=0) %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% set ns.u = loop.index0 %}{% endif %}{% endfor %}"
    )
    shown = "{{ m.content if m.role == 'user' or loop.index0 > ns.u else '-' }}"
    forgetful = last_user + TEMPLATE.replace("{{ m.content }}", shown)
    backend = tiny_tokenizer()
    tokenizer = ChatTokenizer(
        backend.backend, chat_template=forgetful, eos_ids=backend.eos_ids, config=backend.config
    )
    first, second = encode_chat(tokenizer, CHAT)
    assert tokenizer.decode([first.ids[t] for t in first.trained]) == "five<|im_end|>"
    assert tokenizer.decode([second.ids[t] for t in second.trained]) == "six<|im_end|>"


def test_chats_that_cannot_be_trained_are_refused_with_the_reason() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(ValueError, match="a chat without an assistant"):
        encode_chat(tokenizer, CHAT[:1])
    endless = ChatTokenizer(
        tokenizer.backend, chat_template=TEMPLATE.replace("<|im_end|>\n", "\n"), eos_ids=tokenizer.eos_ids
    )
    with pytest.raises(ValueError, match="would never stop"):
        encode_chat(endless, CHAT)
    fickle = ChatTokenizer(tokenizer.backend, chat_template="{{ messages|length }}" + TEMPLATE, eos_ids=[257])
    with pytest.raises(ValueError, match="renders the prompt differently"):
        encode_chat(fickle, CHAT)


def test_loss_and_gradient_do_not_depend_on_micro_batches() -> None:
    model = tiny_model()
    batch = [ChatSample(tuple(range(1, n)), tuple(range(2, n - 1, 2))) for n in (5, 20, 9, 13)]
    found = []
    for micro in (1, 25, 10_000):
        model.zero_grad()
        made = sft_backward(model, batch, micro)
        found.append((made.loss, gradients(model)))
        assert made.tokens == sum(len(s.trained) for s in batch)
        # All begin with the same tokens; apart, each is read up to the last trained one.
        assert made.positions == (max if micro > 1 else sum)(s.trained[-1] for s in batch)
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        assert relative(gradient, found[0][1]) < 1e-6


def test_overfits_a_tiny_set_and_says_what_it_did() -> None:
    policy = tiny_policy()
    chats = [[turn("user", q), turn("assistant", a)] for q, a in (("a", "xyz"), ("b", "zzy"))]
    samples = [sample for chat in chats for sample in encode_chat(policy.tokenizer, chat)]
    seen: list[int] = []
    metrics = train_sft(
        policy.model,
        samples,
        steps=60,
        batch_size=2,
        lr=1e-2,
        warmup=5,
        progress=lambda step, _: seen.append(step),
    )
    assert metrics["loss_last"] < 0.05 and metrics["steps_skipped"] == 0 and seen == list(range(60))
    for sample in samples:
        with torch.no_grad():
            best = policy.model(torch.tensor([sample.ids])).argmax(-1)[0]
        assert [int(best[t - 1]) for t in sample.trained] == [sample.ids[t] for t in sample.trained]


def test_same_seed_same_weights_and_batches_may_be_given() -> None:
    samples = [ChatSample(tuple(range(i, i + 8)), (3, 4, 5)) for i in range(6)]
    runs = [tiny_model(), tiny_model(), tiny_model()]
    for model, seed in zip(runs, (1, 1, 2), strict=True):
        train_sft(model, samples, steps=4, batch_size=3, seed=seed)
    weights = [m.lm_head.weight for m in runs]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    with pytest.raises(ValueError, match="ended after 1 of 2"):
        train_sft(tiny_model(), iter([samples]), steps=2)
