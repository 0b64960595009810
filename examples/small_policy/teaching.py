"""The warm start: a Qwen2-shaped network of random weights, taught by a teacher's traces.

The loss is the mean negative log-likelihood of the answers' tokens, their end tokens included; AdamW with a
warm-up and a cosine. One thread and fixed seeds, so the same machine builds the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from agl_local.network.config import ModelConfig
from agl_local.network.model import CausalLM
from agl_local.policy.folder import Policy, init_model, save_policy
from agl_local.sft.chats import chats_of
from agl_local.sft.finetune import SftSettings, SftStep, finetune
from agl_local.text.tokenizer import ChatTokenizer

LEARNING_RATE = 2e-3
WARM_UP = 30
WEIGHT_DECAY = 0.01
CLIP = 1.0
MICRO_ROWS = 32
WIDER = 2.5
"""Times the deviation of 0.02 that all other weights begin with."""

Row = tuple[list[int], int]
"""Token ids of a prompt and its answer, and the length of the prompt."""


def fresh(tokenizer: ChatTokenizer, seed: int, layers: int = 2, tied: bool = False) -> Policy:
    """A policy of random weights: hidden 128, 4 heads on 2 key-value heads of 32. ``tied``: output layer and
    embedding are one matrix, so that a network which copies one name copies all; it begins wider, since names
    are told apart by it from the first step on.
    """
    shape = ModelConfig(
        hidden_size=128,
        intermediate_size=384,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=tokenizer.vocab_size,
        max_positions=2048,
        tied=tied,
        eos_token_ids=tokenizer.eos_ids,
    )
    model = init_model(shape, seed)
    if tied:
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(WIDER)
    return Policy(model, tokenizer, shape)


def row(
    tokenizer: ChatTokenizer,
    messages: list[dict[str, Any]],
    reply: dict[str, Any],
    tools: list[dict[str, Any]] | None = None,
) -> Row:
    """A prompt and its answer as tokens; the answer ends with the end token."""
    prompt = tokenizer.apply(messages, tools)
    whole = tokenizer.render([*messages, reply], tools, add_generation_prompt=False)
    ids = tokenizer.encode(whole.rstrip("\n"))
    if ids[: len(prompt)] != prompt or ids[-1] not in tokenizer.eos_ids:
        raise ValueError(f"the chat template does not extend its own prompt: {whole!r}")
    return ids, len(prompt)


def micro_batches(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of a step in batches of similar length, so that little is padding."""
    by_length = sorted(rows, key=lambda r: len(r[0]))
    return [by_length[i : i + MICRO_ROWS] for i in range(0, len(by_length), MICRO_ROWS)]


def loss(model: CausalLM, rows: list[Row], prompt_weight: float = 0.0) -> tuple[Tensor, int]:
    """Summed negative log-likelihood of the answer tokens of ``rows``, and how many there are.

    ``prompt_weight``: what the mean over a prompt's tokens weighs beside the mean over the answers'. A
    network that says what comes next in a prompt learns to look things up in it, of which answers of few
    tokens tell little.
    """
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids, _ in rows], batch_first=True)
    columns = torch.arange(ids.shape[1] - 1)
    start = torch.tensor([prompt - 1 for _, prompt in rows])[:, None]
    stop = torch.tensor([len(ids) - 1 for ids, _ in rows])[:, None]
    answer, hidden = (columns >= start) & (columns < stop), model.hidden(ids[:, :-1])

    def summed(chosen: Tensor) -> Tensor:
        return cross_entropy(model.logits(hidden[chosen]), ids[:, 1:][chosen], reduction="sum")

    count = int(answer.sum())
    found = summed(answer)
    if prompt_weight:
        prompt = (columns < start).expand_as(answer)
        found = found + prompt_weight * count * summed(prompt) / int(prompt.sum())
    return found, count


def rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def teach(
    policy: Policy,
    batches: Iterable[list[list[Row]]],
    steps: int,
    log_every: int = 50,
    prompt_weight: float = 0.0,
) -> Policy:
    """The policy, trained for ``steps`` steps, each on the micro-batches that ``batches`` gives.
    ``prompt_weight``: as of :func:`loss`.
    """
    torch.set_num_threads(1)
    model = policy.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    begin = time.perf_counter()
    for step, parts in enumerate(islice(batches, steps)):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate(step, steps)
        optimizer.zero_grad()
        tokens = sum(len(ids) - prompt for rows in parts for ids, prompt in rows)
        total = 0.0
        for rows in parts:
            summed, _ = loss(model, rows, prompt_weight)
            (summed / tokens).backward()  # type: ignore[no-untyped-call]
            total += summed.item() / tokens
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if log_every and (step + 1) % log_every == 0:
            print(
                f"step {step + 1}/{steps}  loss {total:.4f}  {time.perf_counter() - begin:.0f} s", flush=True
            )
    model.eval()
    return policy


def teach_chats(
    policy: Policy,
    lessons: Iterable[tuple[Iterable[dict[str, Any]], SftSettings]],
    log_every: int = 25,
) -> Policy:
    """The policy, trained on each lesson's chats in turn by what ``agl sft`` does: every message of the
    assistant, and nothing that others said.
    """
    torch.set_num_threads(1)

    def told(step: SftStep) -> None:
        if log_every and step.step % log_every == 0:
            print(f"step {step.step}/{step.steps}  loss {step.loss:.4f}  {step.seconds:.0f} s", flush=True)

    for number, (chats, settings) in enumerate(lessons, 1):
        finetune(policy, chats_of(chats, f"lesson {number}").chats, settings, progress=told)
    policy.model.eval()
    return policy


def write(
    policy: Policy, out: Path, card: Path, measure: Callable[[Policy, int], str], n: int, **made: float
) -> None:
    """Save a policy with its card, filled in with how it was ``made`` (seed, steps, seconds) and what
    ``measure`` finds on ``n`` held-out tasks; print that.
    """
    save_policy(policy, out)
    measured = measure(policy, n)
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    text = card.read_text(encoding="utf-8").format(
        parameters=parameters, vocabulary=policy.tokenizer.vocab_size, n=n, table=measured, **made
    )
    (out / "README.md").write_text(text, encoding="utf-8")
    print(measured)
