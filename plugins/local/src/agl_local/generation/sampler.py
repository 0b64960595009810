"""Sampling for a batch of rows at once; every row's result is that of ``sampling``'s functions on the row
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agl_local.generation.confined import Logits, confine
from agl_local.generation.request import Sample, TopLogprobs
from agl_local.network.sampling import constrain, draw, penalise, truncate, uniform


@dataclass
class Drawn:
    """Per row: the token, its log probability and the likeliest alternatives where asked for."""

    tokens: list[int]
    logprobs: list[float]
    top: list[TopLogprobs]


def sample_batch(logits: Logits, samples: Sequence[Sample], eos_ids: Sequence[int]) -> Drawn:
    """Draw the next token of each of ``samples`` [B] from ``logits``."""
    rows, ids = logits.values.float(), logits.ids
    if ids is not None:
        confined = confine(rows, ids, samples, eos_ids)
        logprobs = torch.log_softmax(confined / _temperatures(samples, rows.device), dim=-1)
        tokens, logprobs = _choose(logprobs, samples)
    elif all([s.plain for s in samples]):
        logprobs = torch.log_softmax(rows, dim=-1)
        tokens = _draw(logprobs, samples)
    else:
        logprobs = torch.log_softmax(_prepare(rows, samples, eos_ids), dim=-1)
        tokens, logprobs = _choose(logprobs, samples)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    named = tokens if ids is None else ids[tokens]
    return Drawn(named.tolist(), chosen.tolist(), _alternatives(logprobs, ids, samples))


def _prepare(rows: Tensor, samples: Sequence[Sample], eos_ids: Sequence[int]) -> Tensor:
    """All that comes before the distribution: penalties, masks, temperature."""
    if any(s.adjusted for s in samples):
        rows = rows.clone()
        for row, s in zip(rows, samples, strict=True):
            if s.adjusted:
                penalise(row, s.sampling, s.prompt, s.tokens)
                mask = None if s.grammar is None else s.grammar.mask(s.tokens)
                constrain(row, s.sampling, s.tokens, eos_ids, mask)
    return rows / _temperatures(samples, rows.device)


def _temperatures(samples: Sequence[Sample], device: torch.device) -> Tensor:
    """What logits are divided by, [B, 1]; 1 where the likeliest token is taken."""
    return torch.tensor([[s.sampling.temperature or 1.0] for s in samples], device=device)


def _choose(logprobs: Tensor, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """The tokens, and the log probabilities [B, V] that they were drawn with: after top-k and top-p. Of a
    greedy sample they stay the model's: nothing was drawn.
    """
    greedy = [s.sampling.temperature == 0 for s in samples]
    if all(greedy):
        return logprobs.argmax(dim=-1), logprobs
    drawn = logprobs
    if any(_truncates(s) for s in samples):
        drawn = torch.stack([_truncated(row, s) for row, s in zip(logprobs, samples, strict=True)])
    tokens = _draw(drawn, samples)
    if any(greedy):
        tokens = torch.where(torch.tensor(greedy, device=tokens.device), logprobs.argmax(dim=-1), tokens)
    return tokens, drawn


def _truncates(sample: Sample) -> bool:
    s = sample.sampling
    return s.temperature > 0 and (s.top_p < 1 or s.top_k > 0)


def _truncated(row: Tensor, sample: Sample) -> Tensor:
    """The row after top-k and top-p, summing to 1 again; the same bits where neither acts."""
    if not _truncates(sample):
        return row
    return torch.log_softmax(truncate(row, sample.sampling.top_k, sample.sampling.top_p), dim=-1)


def _draw(logprobs: Tensor, samples: Sequence[Sample]) -> Tensor:
    wide = torch.float32 if logprobs.device.type == "mps" else torch.float64
    numbers = [uniform(s.key, len(s.tokens)) for s in samples]
    tokens = draw(logprobs, torch.tensor(numbers, dtype=wide, device=logprobs.device))
    # Rows of NaN have no answer; the caller sees their log probability. Keep the index in range.
    return tokens.clamp(max=logprobs.shape[1] - 1)


def _alternatives(logprobs: Tensor, ids: Tensor | None, samples: Sequence[Sample]) -> list[TopLogprobs]:
    out: list[TopLogprobs] = []
    for row, s in (
        zip(logprobs, samples, strict=True) if any(s.sampling.top_logprobs for s in samples) else ()
    ):
        values, index = row.topk(min(s.sampling.top_logprobs, row.numel()))
        index = index if ids is None else ids[index]
        pairs = zip(index.tolist(), values.tolist(), strict=True)
        # What a mask has forbidden is no alternative.
        out.append([(token, value) for token, value in pairs if value > float("-inf")])
    return out or [[] for _ in samples]
