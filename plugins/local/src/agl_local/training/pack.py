"""Token sequences as the inputs of a forward pass, in micro-batches that hold only what the loss needs.

Three savings change no number: a sequence is cut after the last state that is read, logits are asked for at
trained positions only, and equal beginnings of sequences are computed once (``trie.nodes``); networks that
know no trie get padded sequences. Invariant: the sum over micro-batches of a
per-token sum is the sum over the batch, so neither padding, sharing nor the size of a micro-batch changes a
gradient (beyond the rounding of float addition).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentlightning.types.tokens import pack as packed_ids
from agl_local.network.sending import sent
from agl_local.trie import nodes
from agl_local.trie.nodes import Trie, ids_tensor, plant

Ids = Sequence[int]


@dataclass(frozen=True)
class Padded:
    """B sequences, each computed whole."""

    ids: Tensor
    """[B, T] token ids, padded with 0 on the right."""
    lengths: Tensor
    """[B] real tokens of each."""

    @property
    def computed(self) -> int:
        """Positions that go through the layers, padding included."""
        return self.ids.numel()

    def to(self, device: torch.device | str) -> Padded:
        return Padded(self.ids.to(device), self.lengths.to(device))


@dataclass(frozen=True)
class Packed:
    """Inputs of one forward pass over some sequences, with N trained tokens among them."""

    inputs: Padded | Trie
    needed: int
    """Tokens that the sequences have up to the last that is read, each sequence counted whole."""
    rows: Tensor
    """[N] the sequence that a trained token belongs to."""
    positions: Tensor
    """[N] its position ``t`` in the whole sequence."""
    at: Tensor
    """[N] which of the hidden states of ``forward.hidden_states`` predicts it."""
    targets: Tensor
    """[N] its id."""

    def to(self, device: torch.device | str) -> Packed:
        """The same tensors on ``device``."""
        numbers = sent(torch.device(device), self.rows, self.positions, self.at, self.targets)
        return Packed(self.inputs.to(device), self.needed, *numbers)


def pack(
    sequences: Sequence[Ids],
    trained: Sequence[Ids],
    share: bool = False,
    read: Sequence[Ids] | None = None,
) -> Packed:
    """Pack ``sequences`` of token ids; ``trained[i]`` are the positions (>= 1, ascending) of sequence i to
    predict. ``share``: equal beginnings are packed once. ``read[i]``: from how many tokens each of them is
    predicted, ascending; by default from all before it.

    Raises ValueError for a position that has no token before it or lies outside its sequence.
    """
    for i, (sequence, positions) in enumerate(zip(sequences, trained, strict=True)):
        if positions and not 1 <= positions[0] <= positions[-1] < len(sequence):
            raise ValueError(
                f"sequence {i} of {len(sequence)} tokens cannot train positions "
                f"{positions[0]}..{positions[-1]}: the first token has nothing before it to be predicted from"
            )
    read = trained if read is None else read
    cut = [inputs_needed(lengths) for lengths in read]
    ids, places = [ids_tensor(s) for s in sequences], [_longs(positions) for positions in trained]
    rows = _longs(range(len(trained))).repeat_interleave(_longs(map(len, trained)))
    spots = _joined(places)
    states = [_longs(lengths) - 1 for lengths in read]
    inputs: Padded | Trie
    if share:
        inputs, at = plant(_inputs(sequences, cut), states)
    else:
        inputs = Padded(_padded([s[:n] for s, n in zip(ids, cut, strict=True)]), _longs(cut))
        at = rows * inputs.ids.shape[1] + _joined(states)
    targets = _joined([s[place] for s, place in zip(ids, places, strict=True)])
    return Packed(inputs, sum(cut), rows, spots, at, targets)


def inputs_needed(read: Ids) -> int:
    """How many tokens a forward pass must read to predict from the first ``read`` (ascending) of them."""
    return read[-1] if read else 0


def micro_batches(
    sequences: Sequence[Ids], read: Sequence[Ids], max_tokens: int, share: bool = False
) -> list[list[int]]:
    """Indices of sequences grouped so that ``pack`` makes at most ``max_tokens`` positions of each group;
    ``read`` as there.

    A sequence that is longer gets a micro-batch of its own. Sequences of equal beginnings stay together if
    they are shared; else those of similar length, longest first: if memory runs out, it does at once.
    """
    if max_tokens < 1:
        raise ValueError(f"micro_tokens must be at least 1, got {max_tokens}")
    lengths = list(map(inputs_needed, read))
    if share:
        return nodes.batches(_inputs(sequences, lengths), max_tokens)
    batches: list[list[int]] = []
    longest = 0
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            longest = lengths[i]
    return batches


def _inputs(sequences: Sequence[Ids], lengths: Sequence[int]) -> list[bytes]:
    return [packed_ids(s[:n]) for s, n in zip(sequences, lengths, strict=True)]


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
