"""Token sequences as tensors: right-padded micro-batches that hold only what the loss needs.

Two savings change no number: a sequence is cut before its last trained token (nothing after it is ever read),
and logits are asked for at trained positions only. Invariant: the sum over micro-batches of a per-token sum
is the sum over the batch, so neither padding nor the size of a micro-batch changes a gradient (beyond the
rounding of float addition).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Inputs of one forward pass over B sequences of at most T tokens, with N trained tokens among them."""

    ids: Tensor
    """[B, T] token ids, padded with 0 on the right."""
    lengths: Tensor
    """[B] real tokens of each sequence."""
    rows: Tensor
    """[N] the sequence that a trained token belongs to."""
    positions: Tensor
    """[N] its position ``t`` there: it is predicted from the hidden state at ``t - 1``."""
    targets: Tensor
    """[N] its id."""

    def to(self, device: torch.device | str) -> Packed:
        """The same tensors on ``device``."""
        parts = (self.ids, self.lengths, self.rows, self.positions, self.targets)
        return Packed(*(part.to(device) for part in parts))


def pack(sequences: Sequence[Sequence[int]], trained: Sequence[Sequence[int]]) -> Packed:
    """Pack ``sequences`` of token ids; ``trained[i]`` are the positions (>= 1, ascending) of sequence i to
    predict.

    Raises ValueError for a position that has no token before it or lies outside its sequence.
    """
    cut = [inputs_needed(positions) for positions in trained]
    ids = torch.zeros(len(sequences), max(cut, default=0), dtype=torch.long)
    rows: list[int] = []
    flat: list[int] = []
    targets: list[int] = []
    for i, (sequence, positions) in enumerate(zip(sequences, trained, strict=True)):
        if positions and not 1 <= positions[0] <= positions[-1] < len(sequence):
            raise ValueError(
                f"sequence {i} of {len(sequence)} tokens cannot train positions "
                f"{positions[0]}..{positions[-1]}: the first token has nothing before it to be predicted from"
            )
        ids[i, : cut[i]] = torch.tensor(sequence[: cut[i]], dtype=torch.long)
        rows.extend([i] * len(positions))
        flat.extend(positions)
        targets.extend(sequence[t] for t in positions)
    tensors = (torch.tensor(part, dtype=torch.long) for part in (cut, rows, flat, targets))
    return Packed(ids, *tensors)


def inputs_needed(positions: Sequence[int]) -> int:
    """How many tokens a forward pass must read to predict the tokens at ``positions`` (ascending)."""
    return positions[-1] if positions else 0


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices grouped so that sequences x longest <= ``max_tokens``, sequences of similar length together.

    A sequence longer than ``max_tokens`` gets a micro-batch of its own. Longest first: if memory runs out, it
    does at once.
    """
    if max_tokens < 1:
        raise ValueError(f"micro_tokens must be at least 1, got {max_tokens}")
    groups: list[list[int]] = []
    width = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and (len(groups[-1]) + 1) * width <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
            width = lengths[i]
    return groups
