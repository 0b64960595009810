"""Tokens of answers that are confined to a few: only their logits are computed.

Under a guided choice or a strict grammar most tokens of the vocabulary have probability 0, and the output
layer of a small network is a third of its work. Invariant: probabilities and draws are those that the masks
of ``network.sampling`` give over the whole vocabulary, but for the order of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from agl_local.generation.request import Sample
from agl_local.network.sampling import allowed_next
from agl_local.network.sending import sent

_MOST = 1024
"""Tokens of all answers of a step up to which choosing rows of the output layer pays."""


class Logits(NamedTuple):
    """``values`` [B, K] are logits of the tokens ``ids`` [K], ascending; None: of the whole vocabulary."""

    values: Tensor
    ids: Sequence[int] | None = None


def confined_to(samples: Sequence[Sample], eos_ids: Sequence[int]) -> list[int] | None:
    """The tokens, ascending, of which each of ``samples`` may be given some next and none may be given
    another; None where they are too many.
    """
    found: set[int] = set()
    for sample in samples:
        allowed = _allowed(sample, eos_ids)
        if allowed is None:
            return None
        found.update(allowed)
        if len(found) > _MOST:
            return None
    return sorted(found)


def confine(logits: Tensor, ids: Sequence[int], samples: Sequence[Sample], eos_ids: Sequence[int]) -> Tensor:
    """``logits`` [B, K] of the tokens ``ids`` [K], with -inf where a sample may not be given the token."""
    column = {token: at for at, token in enumerate(ids)}
    rows: list[int] = []
    columns: list[int] = []
    for row, sample in enumerate(samples):
        allowed = _allowed(sample, eos_ids) or []
        rows += [row] * len(allowed)
        columns += [column[token] for token in allowed]
    at = sent(logits.device, torch.tensor(rows), torch.tensor(columns))
    return torch.full_like(logits, float("-inf")).index_put_(at, logits[at])


def _allowed(sample: Sample, eos_ids: Sequence[int]) -> list[int] | None:
    """The tokens that ``sample`` may be given next; None: any, too many, or changed before the mask."""
    s = sample.sampling
    if s.penalised or s.logit_bias or s.min_tokens:
        return None
    if s.guided_choice is not None:
        return allowed_next(s.guided_choice, sample.tokens, eos_ids)
    if sample.grammar is None:
        return None
    mask = sample.grammar.mask(sample.tokens)
    if int(mask.count_nonzero()) > _MOST:
        return None
    found: list[int] = mask.nonzero()[:, 0].tolist()
    return found
