"""Fine-tuning in memory: what is trained, how often, and that it can be repeated."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from agl_local.generation.engine import Engine
from agl_local.http.protocol import parse_chat
from agl_local.network.lora import Lora, adapted
from agl_local.policy.folder import fingerprint, state
from agl_local.sft.chats import chats_of, encode
from agl_local.sft.finetune import SftSettings, SftSettingsError, SftStep, _Finetuning, finetune
from agl_local.training.freeze import FreezeError
from plugins.local.tests.driver_fixtures import tiny_policy
from plugins.local.tests.sft.test_chats import chat

CHATS = chats_of([chat(str(i), "yes" if i % 2 else "no") for i in range(5)], "made").chats
SETTINGS = SftSettings(epochs=2, batch_size=2, lr=1e-2)


def test_every_chat_is_used_once_an_epoch() -> None:
    policy, steps = tiny_policy(), list[SftStep]()
    report = finetune(policy, CHATS, SETTINGS, progress=steps.append)
    assert (report.chats, report.sequences, report.too_long, report.steps) == (5, 5, 0, 6)
    assert [(s.step, s.epoch) for s in steps] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
    samples = encode(policy.tokenizer, CHATS, 256).samples
    assert report.tokens == sum(len(s.trained) for s in samples)
    # Equal beginnings are computed once in a batch.
    assert len(samples) < report.positions == steps[-1].positions < 2 * sum(s.trained[-1] for s in samples)
    assert report.loss < report.loss_first and report.steps_skipped == 0 and report.seconds > 0


def test_validation_before_and_after_each_epoch() -> None:
    policy, said = tiny_policy(), list[tuple[int, float]]()
    report = finetune(
        policy, CHATS, SETTINGS, val=CHATS[:2], validated=lambda epoch, loss: said.append((epoch, loss))
    )
    assert [epoch for epoch, _ in said] == [0, 1, 2] and [loss for _, loss in said] == report.val_losses
    assert report.val_chats == 2 and report.val_losses[2] < report.val_losses[0]
    (sample, *_) = encode(policy.tokenizer, CHATS[:1], 256).samples
    with torch.no_grad():
        scores = torch.log_softmax(policy.model(torch.tensor([sample.ids]))[0], -1)
    plain = -sum(float(scores[t - 1, sample.ids[t]]) for t in sample.trained) / len(sample.trained)
    again = finetune(policy, CHATS, replace(SETTINGS, epochs=1), val=CHATS[:1])
    assert again.val_losses[0] == pytest.approx(plain, rel=1e-5)


def test_same_seed_same_parameters() -> None:
    torch.set_num_threads(1)
    found = []
    for seed, micro in ((1, 4096), (1, 4096), (2, 4096)):
        policy = tiny_policy()
        finetune(policy, CHATS, replace(SETTINGS, seed=seed, micro_batch_tokens=micro))
        found.append(fingerprint(policy.model))
    assert found[0] == found[1] != found[2]


def test_validation_changes_nothing() -> None:
    plain, validated = tiny_policy(), tiny_policy()
    finetune(plain, CHATS, SETTINGS)
    finetune(validated, CHATS, SETTINGS, val=CHATS)
    assert fingerprint(plain.model) == fingerprint(validated.model)


def test_the_prompt_is_the_engines() -> None:
    """The ids before an answer are those that the engine computes for the same messages."""
    policy = tiny_policy()
    row = chat("a", "b", "c", "d")
    (sample,) = encode(policy.tokenizer, chats_of([row], "made").chats, 256).samples
    with Engine(policy, slots=1, max_len=128) as engine:
        for length, end in ((1, "b<|im_end|>"), (3, "d<|im_end|>")):
            (prompt,) = parse_chat({"messages": row["messages"][:length]}, engine).prompts
            assert list(sample.ids[: len(prompt)]) == prompt
            rest = policy.tokenizer.encode(end)
            assert list(sample.ids[len(prompt) : len(prompt) + len(rest)]) == rest
            assert set(range(len(prompt), len(prompt) + len(rest))) <= set(sample.trained)


def test_frozen_parameters_stay() -> None:
    policy = tiny_policy()
    frozen = policy.model.get_parameter("model.embed_tokens.weight")
    frozen.requires_grad_(False)
    before = frozen.detach().clone()
    report = finetune(policy, CHATS, SETTINGS)
    assert torch.equal(frozen, before) and report.loss < report.loss_first


def test_freeze_patterns() -> None:
    policy, whole = tiny_policy(), tiny_policy()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    report = finetune(policy, CHATS, replace(SETTINGS, freeze=("*embed_tokens*", "model.layers.0.*")))
    everything = finetune(whole, CHATS, SETTINGS).parameters
    changed = {name for name, p in policy.model.named_parameters() if not torch.equal(p, before[name])}
    frozen = {n for n in before if "embed_tokens" in n or n.startswith("model.layers.0.")}
    assert changed == before.keys() - frozen
    assert report.parameters == everything - sum(before[name].numel() for name in frozen)
    assert all(p.requires_grad for p in policy.model.parameters())  # frozen for the training only


def test_patterns_that_cannot_be_meant_are_refused_before_training() -> None:
    policy = tiny_policy()
    before = fingerprint(policy.model)
    with pytest.raises(
        FreezeError, match=r"'\*embed_token\.\*' matches no parameter.*model.embed_tokens.weight"
    ):
        finetune(policy, CHATS, replace(SETTINGS, freeze=("*embed_token.*",)))
    with pytest.raises(FreezeError, match="leave no parameter to train"):
        finetune(policy, CHATS, replace(SETTINGS, freeze=("*",)))
    assert fingerprint(policy.model) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 0), ("batch_size", 0), ("lr", 0.0), ("lr", math.nan), ("max_len", 1), ("warmup", 1.5)],
)
def test_settings_are_checked(name: str, value: float) -> None:
    with pytest.raises(SftSettingsError, match=name):
        replace(SETTINGS, **{name: value})


def test_a_max_len_beyond_the_policy_is_refused_before_training() -> None:
    policy = tiny_policy()
    before = fingerprint(policy.model)
    with pytest.raises(SftSettingsError, match="the policy has 256 positions"):
        finetune(policy, CHATS, replace(SETTINGS, max_len=300))
    assert fingerprint(policy.model) == before


# ------------------------------------------------------------------------- adapters, precision and groups
LORA = replace(SETTINGS, lora=Lora(rank=2, alpha=4))


def test_lora_leaves_the_weights_and_trains_float32_matrices_beside_bfloat16() -> None:
    policy = tiny_policy()
    policy.model.to(dtype=torch.bfloat16)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    report = finetune(policy, CHATS, replace(LORA, epochs=4, dtype="bfloat16"))
    layers = adapted(policy.model)
    assert report.parameters == sum(one.lora_A.numel() + one.lora_B.numel() for one in layers.values())
    assert report.loss < report.loss_first
    for layer in layers.values():
        assert layer.lora_A.dtype == layer.lora_B.dtype == torch.float32 and layer.lora_B.abs().sum() > 0
        assert layer.merged().dtype == torch.bfloat16
    after = dict(policy.model.named_parameters())
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("workers", [2, 3])
def test_micro_batches_at_a_time_give_the_gradient_of_one_after_the_other(workers: int) -> None:
    found = []
    for at_once, micro in ((1, 4096), (1, 20), (workers, 20), (workers, 20)):
        policy = tiny_policy()
        finetune(policy, CHATS, replace(LORA, micro_batch_tokens=micro), workers=at_once)
        found.append(policy.model)
    assert fingerprint(found[2]) == fingerprint(found[3])
    for other in found[1:]:
        for name, value in state(found[0]).items():
            assert torch.allclose(value, state(other)[name], atol=1e-5)


def test_chats_with_the_same_first_message_come_together() -> None:
    """Four beginnings with five chats each, in groups of up to three."""
    rows = [
        {"messages": [{"role": "system", "content": f"schema {i}"}, *chat(f"{i} {j}", "yes")["messages"]]}
        for i in range(4)
        for j in range(5)
    ]
    chats = chats_of(rows, "made").chats
    policy = tiny_policy()
    data = encode(policy.tokenizer, chats, 256)
    assert Counter(data.beginnings) == {f'{{"content": "schema {i}", "role": "system"}}': 5 for i in range(4)}
    positions = {}
    for group in (1, 3):
        report = finetune(policy, chats, replace(SETTINGS, epochs=1, batch_size=3, group=group))
        assert report.sequences == 20 and report.steps == 7
        positions[group] = report.positions
    assert positions[3] < positions[1]
    settings = replace(SETTINGS, group=3)
    work = _Finetuning(policy.model, data, None, settings, lambda step: None, lambda epoch, loss: None, 1)
    order = work._grouped(range(20), torch.Generator().manual_seed(0))
    assert sorted(order) == list(range(20))
    runs = [len(list(own)) for _, own in itertools.groupby(order, key=lambda i: data.beginnings[i])]
    assert all(length in (2, 3, 5, 4, 6) for length in runs) and len(runs) <= 8


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"dtype": "bfloat16"}, "dtype bfloat16 needs lora"),
        ({"dtype": "int8", "lora": Lora(rank=2)}, "'int8' is not one of bfloat16, float16, float32"),
        ({"lora": Lora(rank=2), "freeze": ("*embed*",)}, "leave freeze out"),
        ({"group": 0}, "group must be at least 1"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SftSettingsError, match=problem):
        replace(SETTINGS, **settings)
