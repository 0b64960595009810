"""Does the trainer see what the engine saw? Log probabilities of stored rows under given weights.

The fidelity check of a run: for rows that the present weights sampled, the trainer's forward over the stored
ids must give the stored logprobs (float32: <= 1e-4). A larger gap means other weights, other ids, another
template or another mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentlightning.types import Row
from agl_local.network.model import LanguageModel
from agl_local.text.grammar import GrammarCompiler
from agl_local.training.batch import Tokens, check_row, micro_rows, tokens_of
from agl_local.training.logprobs import token_logprobs
from agl_local.trie.forward import can_share


@dataclass(frozen=True)
class Gap:
    """|trainer's logprob − stored logprob| over ``tokens`` trained tokens, in nats; ``worst`` is (row_id,
    position).
    """

    max: float
    mean: float
    worst: tuple[str, int] | None
    tokens: int


def compute_dtype(model: LanguageModel) -> torch.dtype:
    """The type of logprobs and losses: float32, or float64 for a float64 model."""
    return torch.float64 if model.dtype == torch.float64 else torch.float32


@torch.no_grad()
def score_tokens(model: LanguageModel, tokens: Tokens) -> Tensor:
    """Log probabilities [N] of the trained tokens (already on the model's device), without a gradient."""
    return token_logprobs(model, tokens.packed, tokens.temperature, tokens.guides).logprobs


def row_logprobs(
    model: LanguageModel,
    rows: Sequence[Row],
    *,
    eos_ids: Sequence[int] = (),
    micro_tokens: int = 8192,
    grammars: GrammarCompiler | None = None,
) -> list[float]:
    """Return the sum of the log probabilities of each row's trained tokens under ``model``, in nats."""
    for row in rows:
        check_row(row, model.config.vocab_size, eos_ids=eos_ids, grammars=grammars)
    share = can_share(model)
    number = {id(row): i for i, row in enumerate(rows)}
    sums = [0.0] * len(rows)
    for group in micro_rows([row for row in rows if row.trained_tokens], micro_tokens, share, eos_ids):
        tokens = tokens_of(group, eos_ids, share, grammars).to(model.device, compute_dtype(model))
        scores = score_tokens(model, tokens).double()
        found = scores.new_zeros(len(group)).index_add(0, tokens.packed.rows, scores)
        for row, value in zip(group, found.tolist(), strict=True):
            sums[number[id(row)]] = value
    return sums


def logprob_gap(
    model: LanguageModel,
    rows: Sequence[Row],
    *,
    eos_ids: Sequence[int] = (),
    micro_tokens: int = 8192,
    grammars: GrammarCompiler | None = None,
) -> Gap:
    """Compare the stored logprobs of the trained tokens of ``rows`` with those of ``model``; tokens that were
    drawn from another distribution than the policy's have logprobs of that one, and are not compared.
    """
    gaps = GapMeter()
    for row in rows:
        check_row(row, model.config.vocab_size, eos_ids=eos_ids, grammars=grammars)
    share = can_share(model)
    for group in micro_rows([row for row in rows if row.trained_tokens], micro_tokens, share, eos_ids):
        tokens = tokens_of(group, eos_ids, share, grammars).to(model.device, compute_dtype(model))
        gaps.add(tokens, score_tokens(model, tokens), ~tokens.off_policy)
    return gaps.result()


class GapMeter:
    """Collects gaps over micro-batches."""

    def __init__(self) -> None:
        self._max = -1.0
        self._sum = 0.0
        self._tokens = 0
        self._worst: tuple[str, int] | None = None

    def add(self, tokens: Tokens, logprobs: Tensor, only: Tensor | None = None) -> None:
        """Count all tokens, or those where ``only`` [N] is True. A logprob that is not finite is an infinite
        gap.
        """
        gap = (logprobs.detach() - tokens.old).abs()
        gap = torch.where(gap.isfinite(), gap, torch.inf)
        if only is not None:
            gap = gap.masked_fill(~only, -1.0)
        counted = gap >= 0
        largest, at = gap.max(dim=0)
        self._tokens += int(counted.sum())
        self._sum += float(gap[counted].sum())
        if float(largest) > self._max:
            self._max = float(largest)
            row = int(tokens.packed.rows[at])
            self._worst = (tokens.row_ids[row], int(tokens.packed.positions[at]))

    def result(self) -> Gap:
        """``max`` and ``mean`` are 0 when no token was counted; ``tokens`` says so."""
        mean = self._sum / self._tokens if self._tokens else 0.0
        return Gap(max(self._max, 0.0), mean, self._worst, self._tokens)
