"""Answers to many prompts in one batch, without engine or server; for building and testing small policies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agl_local.network.model import LanguageModel
from agl_local.text.tokenizer import ChatTokenizer


@torch.no_grad()
def complete(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    random: torch.Generator,
    limit: int,
) -> list[str]:
    """The text answered to each prompt, up to the end token or ``limit`` tokens; temperature 0 is greedy."""
    if not prompts:
        return []
    model.pack()
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    cache = model.new_cache(len(prompts), int(lengths.max()) + limit)
    slots = torch.arange(len(prompts))
    columns = torch.arange(int(lengths.max()))[None]
    positions = torch.where(columns < lengths[:, None], columns, -1)
    logits = model.step(_padded(prompts), positions, cache, slots, last=lengths - 1)
    ends = torch.tensor(tokenizer.eos_ids)
    done = torch.zeros(len(prompts), dtype=torch.bool)
    written: list[Tensor] = []
    for offset in range(limit):
        token = _choose(logits, temperature, random).masked_fill(done, int(ends[0]))
        written.append(token)
        done |= torch.isin(token, ends)
        if bool(done.all()) or offset == limit - 1:
            break
        logits = model.step(token[:, None], (lengths + offset)[:, None], cache, slots)[:, 0]
    rows = torch.stack(written, dim=1).tolist()
    return [tokenizer.decode([i for i in row if i not in tokenizer.eos_ids]) for row in rows]


def _choose(logits: Tensor, temperature: float, random: torch.Generator) -> Tensor:
    if temperature == 0.0:
        return logits.argmax(-1)
    return torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=random)[:, 0]


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
