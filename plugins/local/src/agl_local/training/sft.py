"""Supervised fine-tuning on chats: the loss is on what the assistant says, and on nothing else.

A prompt is rendered exactly as the engine renders it (``tokenizer.apply(messages[:i],
add_generation_prompt=True)``) and the answer is tokenised on its own, as sampled tokens follow a prompt.
Turns whose prompt extends the sequence so far share one sequence; where the template rewrites history, a new
sequence begins. Invariant: each assistant turn is trained once, up to and including its end token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agl_local.network.model import LanguageModel
from agl_local.text.tokenizer import ChatTokenizer
from agl_local.text.tools import parse_calls
from agl_local.training.fit import Progress, fit, shuffled
from agl_local.training.logprobs import token_logprobs
from agl_local.training.pack import Packed, micro_batches, pack
from agl_local.trie.forward import can_share

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ChatSample:
    """Token ids of one training sequence, and the positions (ascending, >= 1) whose tokens are trained."""

    ids: tuple[int, ...]
    trained: tuple[int, ...]


def encode_chat(tokenizer: ChatTokenizer, messages: Messages, tools: Tools | None = None) -> list[ChatSample]:
    """The training sequences of one chat: usually one. An assistant message with ``weight`` 0 is context, as
    in OpenAI's fine-tuning format. Raises ValueError for a chat that cannot be trained on.
    """
    samples: list[ChatSample] = []
    ids: list[int] = []
    trained: list[int] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or message.get("weight", 1) == 0:
            continue
        prompt, answer = encode_answer(tokenizer, messages[:i], message, tools)
        if trained and prompt[: len(ids)] != ids:
            samples.append(ChatSample(tuple(ids), tuple(trained)))
            trained = []
        ids = prompt + answer
        trained.extend(range(len(prompt), len(ids)))
    if not trained:
        raise ValueError("a chat without an assistant message has nothing to train on")
    samples.append(ChatSample(tuple(ids), tuple(trained)))
    return samples


def encode_answer(
    tokenizer: ChatTokenizer, prompt: Messages, answer: Mapping[str, Any], tools: Tools | None = None
) -> tuple[list[int], list[int]]:
    """Ids of ``prompt`` as the engine sees it, and of the assistant message ``answer`` to its end token."""
    before = tokenizer.render(prompt, tools, add_generation_prompt=True)
    after = tokenizer.render([*prompt, answer], tools, add_generation_prompt=False)
    if not after.startswith(before):
        at = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
            min(len(before), len(after)),
        )
        raise ValueError(
            f"the chat template renders the prompt differently once answered, from character {at} on: "
            f"{before[at : at + 40]!r} became {after[at : at + 40]!r}"
        )
    _check_calls(tokenizer, after[len(before) :], answer)
    ids = tokenizer.encode(after[len(before) :])
    ends = [i for i, token in enumerate(ids) if token in tokenizer.eos_ids]
    if not ends:
        raise ValueError(
            f"the chat template closes the answer {after[len(before) :][-40:]!r} with none of the end tokens "
            f"{tokenizer.eos_ids}: a policy trained on it would never stop"
        )
    return tokenizer.encode(before), ids[: ends[-1] + 1]


def _check_calls(tokenizer: ChatTokenizer, text: str, answer: Mapping[str, Any]) -> None:
    """Raise ValueError if the engine would not read the calls of ``answer`` in the text that is taught."""
    wanted = [call["function"]["name"] for call in answer.get("tool_calls") or ()]
    if not wanted:
        return
    syntax = tokenizer.syntax
    read = parse_calls(text.removesuffix(syntax.ending), syntax)
    if [call.name for call in read.calls] != wanted:
        why = tokenizer.form.problem or f"the template writes {text[:200]!r}"
        raise ValueError(f"its calls of {', '.join(wanted)} would not be read back as calls: {why}")


@dataclass(frozen=True)
class SftGradient:
    """What ``sft_backward`` computed."""

    loss: float
    tokens: int
    """Trained tokens."""
    positions: int
    """Positions that went through the layers."""


def sft_backward(
    model: LanguageModel, batch: Sequence[ChatSample], micro_tokens: int, workers: int = 1
) -> SftGradient:
    """Add the gradient of the mean cross-entropy over all trained tokens of ``batch``.

    ``workers``: so many micro-batches are computed at a time, each in a thread with a gradient of its own;
    these are added in the order of the micro-batches, so that the sum has the same bits each time.
    """
    tokens = sum(len(sample.trained) for sample in batch)
    parts = list(_micro(model, batch, micro_tokens))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def loss_of(packed: Packed) -> Tensor:
        return -token_logprobs(model, packed).logprobs.sum() / tokens

    def apart(packed: Packed) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        loss = loss_of(packed)
        # Some families have layers that compute nothing: they read the keys and values of others.
        return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

    total = torch.zeros((), device=model.device)
    if workers == 1:
        for packed in parts:
            loss = loss_of(packed)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
    else:
        with ThreadPoolExecutor(workers) as threads:
            for loss, found in threads.map(apart, parts):
                total += loss
                for parameter, grad in zip(parameters, found, strict=True):
                    if grad is not None:
                        parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
    return SftGradient(float(total), tokens, sum(packed.inputs.computed for packed in parts))


@torch.no_grad()
def sft_loss(model: LanguageModel, samples: Sequence[ChatSample], micro_tokens: int) -> float:
    """Return the mean cross-entropy over all trained tokens of ``samples``, in nats."""
    tokens = sum(len(sample.trained) for sample in samples)
    total = 0.0
    for packed in _micro(model, samples, micro_tokens):
        total -= float(token_logprobs(model, packed).logprobs.double().sum())
    return total / tokens


def _micro(model: LanguageModel, samples: Sequence[ChatSample], micro_tokens: int) -> Iterator[Packed]:
    ids, trained = [sample.ids for sample in samples], [sample.trained for sample in samples]
    share = can_share(model)
    for group in micro_batches(ids, trained, micro_tokens, share):
        yield pack([ids[i] for i in group], [trained[i] for i in group], share).to(model.device)


def train_sft(
    model: LanguageModel,
    examples: Sequence[ChatSample] | Iterator[Sequence[ChatSample]],
    *,
    steps: int,
    batch_size: int = 64,
    lr: float = 3e-3,
    warmup: int = 30,
    weight_decay: float = 0.01,
    clip_norm: float | None = 1.0,
    seed: int = 0,
    micro_tokens: int = 4096,
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train ``model`` in place with AdamW and a cosine schedule over ``steps`` steps; see ``fit.fit``.

    ``examples`` is a fixed set (shuffled anew each time it is used up, by ``seed``) or an iterator of
    batches, which then decides their size. Returns the last metrics; ``loss`` is in nats per token,
    ``tokens`` counts the trained tokens of all steps, ``positions`` what went through the layers for them.
    ``workers``: as of :func:`sft_backward`.
    """
    batches = shuffled(examples, batch_size, seed) if isinstance(examples, Sequence) else examples
    seen = positions = 0

    def backward(step: int) -> dict[str, float]:
        nonlocal seen, positions
        batch = next(batches, None)
        if batch is None:
            raise ValueError(f"the batches ended after {step} of {steps} steps")
        found = sft_backward(model, batch, micro_tokens, workers)
        seen += found.tokens
        positions += found.positions
        return {"loss": found.loss, "tokens": float(seen), "positions": float(positions)}

    return fit(
        model,
        backward,
        steps=steps,
        lr=lr,
        warmup=warmup,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        what="SFT",
        progress=progress,
    )
