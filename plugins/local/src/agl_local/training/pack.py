"""Token sequences as tensors: right-padded micro-batches that hold only what the loss needs.

Three savings change no number: a sequence is cut before its last trained token (nothing after it is ever
read), logits are asked for at trained positions only, and a prompt that several sequences begin with is
computed once. Invariant: the sum over micro-batches of a per-token sum is the sum over the batch, so neither
padding, sharing nor the size of a micro-batch changes a gradient (beyond the rounding of float addition).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentlightning.types.tokens import WIDTH, TokenIds, pack as packed_ids

Ids = Sequence[int]


@dataclass(frozen=True)
class Prefixes:
    """G prompts, each computed once for all sequences that begin with it."""

    ids: Tensor
    """[G, P] token ids, padded with 0 on the right."""
    lengths: Tensor
    """[G] real tokens of each."""
    groups: Tensor
    """[B] the prompt of each sequence."""

    def to(self, device: torch.device | str) -> Prefixes:
        return Prefixes(self.ids.to(device), self.lengths.to(device), self.groups.to(device))


@dataclass(frozen=True)
class Packed:
    """Inputs of one forward pass over B sequences, with N trained tokens among them."""

    ids: Tensor
    """[B, T] token ids after the shared prefix, padded with 0 on the right."""
    lengths: Tensor
    """[B] real tokens of each."""
    rows: Tensor
    """[N] the sequence that a trained token belongs to."""
    positions: Tensor
    """[N] its position ``t`` in the whole sequence."""
    columns: Tensor
    """[N] the column of ``ids`` whose hidden state predicts it."""
    targets: Tensor
    """[N] its id."""
    prefixes: Prefixes | None = None

    def to(self, device: torch.device | str) -> Packed:
        """The same tensors on ``device``."""
        return Packed(
            self.ids.to(device),
            self.lengths.to(device),
            self.rows.to(device),
            self.positions.to(device),
            self.columns.to(device),
            self.targets.to(device),
            None if self.prefixes is None else self.prefixes.to(device),
        )


def pack(sequences: Sequence[Ids], trained: Sequence[Ids], share: bool = False) -> Packed:
    """Pack ``sequences`` of token ids; ``trained[i]`` are the positions (>= 1, ascending) of sequence i to
    predict. ``share``: equal prompts are packed once.

    Raises ValueError for a position that has no token before it or lies outside its sequence.
    """
    for i, (sequence, positions) in enumerate(zip(sequences, trained, strict=True)):
        if positions and not 1 <= positions[0] <= positions[-1] < len(sequence):
            raise ValueError(
                f"sequence {i} of {len(sequence)} tokens cannot train positions "
                f"{positions[0]}..{positions[-1]}: the first token has nothing before it to be predicted from"
            )
    cut = [inputs_needed(positions) for positions in trained]
    skip = [prompt_length(positions) if share else 0 for positions in trained]
    ids, places = [ids_tensor(s) for s in sequences], [_longs(positions) for positions in trained]
    rows = _longs(range(len(trained))).repeat_interleave(_longs(map(len, trained)))
    at = _joined(places)
    return Packed(
        ids=_padded([s[a:b] for s, a, b in zip(ids, skip, cut, strict=True)]),
        lengths=_longs(b - a for a, b in zip(skip, cut, strict=True)),
        rows=rows,
        positions=at,
        columns=at - 1 - _longs(skip)[rows],
        targets=_joined([s[place] for s, place in zip(ids, places, strict=True)]),
        prefixes=_prefixes(sequences, skip) if share else None,
    )


def ids_tensor(ids: Ids) -> Tensor:
    """Token ids as int64; arrays are read without a list between."""
    if isinstance(ids, TokenIds):
        return torch.frombuffer(ids.view(), dtype=torch.int32).long() if len(ids) else _longs(())
    return _longs(ids)


def inputs_needed(positions: Ids) -> int:
    """How many tokens a forward pass must read to predict the tokens at ``positions`` (ascending)."""
    return positions[-1] if positions else 0


def prompt_length(positions: Ids) -> int:
    """Tokens before the one that predicts the first trained token: what samples of one prompt share."""
    return positions[0] - 1 if positions else 0


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices grouped so that sequences x longest <= ``max_tokens``, sequences of similar length together.

    A sequence longer than ``max_tokens`` gets a micro-batch of its own. Longest first: if memory runs out, it
    does at once.
    """
    return [
        [i for unit in batch for i in unit]
        for batch in _fill([([i], 0, n) for i, n in enumerate(lengths)], max_tokens)
    ]


def shared_batches(sequences: Sequence[Ids], trained: Sequence[Ids], max_tokens: int) -> list[list[int]]:
    """As ``micro_batches``, for ``pack`` with ``share``: those of one prompt stay together if they fit."""
    by_prompt: dict[bytes, list[int]] = {}
    for i, (sequence, positions) in enumerate(zip(sequences, trained, strict=True)):
        by_prompt.setdefault(packed_ids(sequence[: prompt_length(positions)]), []).append(i)
    units: list[Unit] = []
    for prompt, members in by_prompt.items():
        shared = len(prompt) // WIDTH
        own = max(inputs_needed(trained[i]) for i in members) - shared
        room = max(1, (max_tokens - shared) // max(1, own))
        units += [(members[at : at + room], shared, own) for at in range(0, len(members), room)]
    return [[i for unit in batch for i in unit] for batch in _fill(units, max_tokens)]


def saved_by_sharing(sequences: Sequence[Ids], trained: Sequence[Ids]) -> float:
    """Share of all input tokens that need not be computed when equal prompts are computed once, in [0, 1)."""
    prompts = {packed_ids(s[: prompt_length(p)]) for s, p in zip(sequences, trained, strict=True)}
    total = sum(inputs_needed(p) for p in trained)
    once = sum(map(len, prompts)) // WIDTH
    return (sum(prompt_length(p) for p in trained) - once) / total if total else 0.0


Unit = tuple[list[int], int, int]
"""Sequences that stay together, the length of their prompt, and of the longest part after it."""


def _fill(units: Iterable[Unit], max_tokens: int) -> list[list[list[int]]]:
    if max_tokens < 1:
        raise ValueError(f"micro_tokens must be at least 1, got {max_tokens}")
    batches: list[list[list[int]]] = []
    rows = prompt = own = 0
    for unit, before, after in sorted(units, key=lambda u: (-u[2], -u[1], u[0])):
        wider = max(prompt, before)
        if batches and (len(batches[-1]) + 1) * wider + (rows + len(unit)) * own <= max_tokens:
            batches[-1].append(unit)
            rows, prompt = rows + len(unit), wider
        else:
            batches.append([unit])
            rows, prompt, own = len(unit), before, after
    return batches


def _prefixes(sequences: Sequence[Ids], lengths: Sequence[int]) -> Prefixes:
    number: dict[bytes, int] = {}
    groups = [
        number.setdefault(packed_ids(s[:n]), len(number)) for s, n in zip(sequences, lengths, strict=True)
    ]
    prompts = [ids_tensor(TokenIds.unpacked(prompt)) for prompt in number]
    return Prefixes(_padded(prompts), _longs(map(len, prompts)), _longs(groups))


def _padded(sequences: Sequence[Tensor]) -> Tensor:
    width = max(map(len, sequences), default=0)
    padded = torch.zeros(len(sequences), width, dtype=torch.long)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else _longs(())


def _longs(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long)
