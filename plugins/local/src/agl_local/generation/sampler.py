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
from agl_local.network.sending import sent, sent_list


@dataclass
class Drawn:
    """Per row: the token, its log probability and the likeliest alternatives where asked for."""

    tokens: list[int]
    logprobs: list[float]
    top: list[TopLogprobs]


def sample_batch(logits: Logits, samples: Sequence[Sample], eos_ids: Sequence[int]) -> Drawn:
    """Draw the next token of each of ``samples`` [B] from ``logits``. The host waits for the device once."""
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
    return _read(tokens, logprobs, ids, samples)


def _read(tokens: Tensor, logprobs: Tensor, ids: Sequence[int] | None, samples: Sequence[Sample]) -> Drawn:
    """What was drawn, and the alternatives, by one copy to the host."""
    # Of one type: float32 holds the ids of any vocabulary.
    parts = [tokens.float(), logprobs.gather(1, tokens[:, None])[:, 0]]
    asking = {row: s.sampling.top_logprobs for row, s in enumerate(samples) if s.sampling.top_logprobs}
    most = min(max(asking.values(), default=0), logprobs.shape[1])
    if asking:
        rows = logprobs.index_select(0, sent_list(logprobs.device, list(asking)))
        values, index = rows.topk(most)
        parts += [values.flatten(), index.flatten().float()]
    numbers = torch.cat(parts).tolist()
    count = len(samples)
    top: list[TopLogprobs] = [[] for _ in samples]
    for at, (row, wanted) in enumerate(asking.items()):
        first = 2 * count + at * most
        values_of = numbers[first : first + min(wanted, most)]
        index_of = numbers[first + len(asking) * most :]
        # What a mask has forbidden is no alternative.
        top[row] = [
            (_named(i, ids), value)
            for i, value in zip(index_of, values_of, strict=False)
            if value > float("-inf")
        ]
    return Drawn([_named(i, ids) for i in numbers[:count]], numbers[count : 2 * count], top)


def _named(place: float, ids: Sequence[int] | None) -> int:
    return int(place) if ids is None else ids[int(place)]


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
    return sent_list(device, [s.sampling.temperature or 1.0 for s in samples])[:, None]


def _choose(logprobs: Tensor, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """The tokens, and the log probabilities [B, V] that they were drawn with: after top-k and top-p. Of a
    greedy sample they stay the model's: nothing was drawn.
    """
    greedy = [s.sampling.temperature == 0 for s in samples]
    if all(greedy):
        return logprobs.argmax(dim=-1), logprobs
    drawn = _truncated(logprobs, samples)
    tokens = _draw(drawn, samples)
    if any(greedy):
        (likeliest,) = sent(tokens.device, torch.tensor(greedy))
        tokens = torch.where(likeliest, logprobs.argmax(dim=-1), tokens)
    return tokens, drawn


def _truncated(logprobs: Tensor, samples: Sequence[Sample]) -> Tensor:
    """The rows after top-k and top-p, each summing to 1 again; the same bits where neither acts."""
    asked: dict[tuple[int, float], list[int]] = {}
    for row, s in enumerate(one.sampling for one in samples):
        if s.temperature > 0 and (s.top_p < 1 or s.top_k > 0):
            asked.setdefault((s.top_k, s.top_p), []).append(row)
    out = logprobs
    for (top_k, top_p), rows in asked.items():
        at = sent_list(logprobs.device, rows)
        cut = torch.log_softmax(truncate(logprobs.index_select(0, at), top_k, top_p), dim=-1)
        out = out.index_copy(0, at, cut)
    return out


def _draw(logprobs: Tensor, samples: Sequence[Sample]) -> Tensor:
    wide = torch.float32 if logprobs.device.type == "mps" else torch.float64
    numbers = torch.tensor([uniform(s.key, len(s.tokens)) for s in samples], dtype=wide)
    tokens = draw(logprobs, *sent(logprobs.device, numbers))
    # Rows of NaN have no answer; the caller sees their log probability. Keep the index in range.
    return tokens.clamp(max=logprobs.shape[1] - 1)
