"""The loss, written down twice for the tests: in plain Python on logprobs, and through a float64 model.

The model is a small recurrent network: the distribution of token t depends on *every* token before it, so a
merged row that showed a call a different prefix would be found out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from agentlightning.types import Recipe, Row

CLAMP = 20.0
"""Bound of the log ratio, as in verl."""


def clip_term(logprob: float, old: float, advantage: float, recipe: Recipe) -> float:
    """Clipped loss of one token: ``-min(rho A, clip(rho) A)``, with the dual clip if the recipe has one."""
    ratio = math.exp(max(-CLAMP, min(CLAMP, logprob - old)))
    clipped = max(1 - recipe.clip_low, min(1 + recipe.clip_high, ratio))
    loss = max(-advantage * ratio, -advantage * clipped)
    if recipe.clip_ratio_c is not None and advantage < 0:
        loss = min(loss, -advantage * recipe.clip_ratio_c)
    return loss


def row_loss(row: Row, logprobs: Sequence[float], recipe: Recipe) -> float:
    """Weighted loss of one row; ``logprobs[t]``: of ``token_ids[t]`` under the policy that is trained."""
    return sum(
        row.weights[t] * clip_term(logprobs[t], row.logprobs[t], row.advantages[t], recipe)
        for t in range(len(row.token_ids))
        if row.mask[t]
    )


class Toy(nn.Module):
    """Embedding, GRU, linear head; float64."""

    def __init__(self, vocabulary: int, hidden: int = 6, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.start = nn.Parameter(torch.randn(hidden, dtype=torch.float64))
        self.embed = nn.Embedding(vocabulary, hidden, dtype=torch.float64)
        self.core = nn.GRU(hidden, hidden, batch_first=True, dtype=torch.float64)
        self.head = nn.Linear(hidden, vocabulary, dtype=torch.float64)

    def logprobs(self, token_ids: Sequence[int], temperature: float) -> Tensor:
        """Log-probability of every token given those before it, shape ``[n]``."""
        ids = torch.tensor(list(token_ids))
        seen = torch.cat([self.start[None], self.embed(ids[:-1])])
        states, _ = self.core(seen[None])
        scores = torch.log_softmax(self.head(states[0]) / temperature, dim=-1)
        return scores.gather(1, ids[:, None])[:, 0]


def torch_loss(model: Toy, rows: Sequence[Row], recipe: Recipe) -> Tensor:
    """The step's loss of one policy over its rows: ``sum of weight * clipped loss``."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        new = model.logprobs(row.token_ids, row.temperature)
        old, advantage, weight, mask = (
            torch.tensor(values, dtype=torch.float64)
            for values in (row.logprobs, row.advantages, row.weights, row.mask)
        )
        ratio = torch.exp((new - old).clamp(-CLAMP, CLAMP))
        clipped = ratio.clamp(1 - recipe.clip_low, 1 + recipe.clip_high)
        total = total + (mask * weight * torch.maximum(-advantage * ratio, -advantage * clipped)).sum()
    return total


def gradient(model: Toy, rows: Sequence[Row], recipe: Recipe) -> Tensor:
    """Gradient of :func:`torch_loss` by all parameters, as one vector."""
    model.zero_grad()
    torch_loss(model, rows, recipe).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
