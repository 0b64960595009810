"""Arithmetic and memory traffic that a model's passes need at least, and the time that a machine needs.

A product of an [M, K] and a [K, N] matrix costs 2·M·K·N floating-point operations. Per position, a forward
pass multiplies with every matrix of the layers once, attention reads the positions before it, and the output
layer is needed only where a token is sampled or trained. A training step costs three forward passes: one for
the loss, two for the gradients of inputs and weights (Kaplan et al., arXiv:2001.08361, section 2.1).

The time is that of the roofline model (Williams et al., doi:10.1145/1498765.1498785): operations over the
measured rate of matrix products, or bytes over the measured memory bandwidth, whichever is more. Norms,
softmax, sampling and the optimizer's arithmetic count as nothing, so no subject can reach 100 %.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """The sizes of a network that its arithmetic depends on."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @classmethod
    def read(cls, folder: Path) -> Shape:
        """Return the shape of the model in ``folder`` by its ``config.json``."""
        raw = json.loads((folder / "config.json").read_text())
        heads = raw["num_attention_heads"]
        return cls(
            layers=raw["num_hidden_layers"],
            hidden=raw["hidden_size"],
            intermediate=raw["intermediate_size"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            vocabulary=raw["vocab_size"],
            tied=bool(raw.get("tie_word_embeddings")),
        )

    @property
    def layer_matrices(self) -> int:
        """Numbers in the matrices of all layers."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def output_matrix(self) -> int:
        """Numbers in the output layer."""
        return self.hidden * self.vocabulary


def forward_operations(shape: Shape, spans: Sequence[tuple[int, int]], outputs: int) -> float:
    """Return the operations of a forward pass.

    ``spans`` are the computed positions as (first, end) in their sequences: position t reads t + 1 keys and
    values. ``outputs`` is the number of positions whose logits are needed.
    """
    positions = sum(end - first for first, end in spans)
    read = sum((end * (end + 1) - first * (first + 1)) // 2 for first, end in spans)
    attention = 4.0 * shape.layers * shape.heads * shape.head_dim * read
    return 2.0 * shape.layer_matrices * positions + 2.0 * shape.output_matrix * outputs + attention


def decode_seconds(shape: Shape, limits: Limits, batch: int, prompt: int, new: int) -> float:
    """Return the least time in which ``batch`` answers grow by ``new`` tokens behind ``prompt`` tokens.

    Each step reads every weight once, and the keys and values of all conversations.
    """
    total = 0.0
    for at in range(prompt, prompt + new):
        operations = batch * forward_operations(shape, [(at, at + 1)], 1)
        kv = 2 * shape.layers * shape.kv_heads * shape.head_dim * (at + 1) * batch
        numbers = shape.layer_matrices + shape.output_matrix + kv
        total += max(operations / limits.operations, 4.0 * numbers / limits.bytes)
    return total


@dataclass(frozen=True)
class Limits:
    """What the machine was measured to do at best, per second, with the threads of this run."""

    operations: float
    bytes: float


def trie_spans(sequences: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the spans that are left when each equal beginning of ``sequences`` is computed once."""
    spans: list[tuple[int, int]] = []
    before: Sequence[int] = ()
    for ids in sorted(map(list, sequences)):
        shared = 0
        while shared < min(len(ids), len(before)) and ids[shared] == before[shared]:
            shared += 1
        if shared < len(ids):
            spans.append((shared, len(ids)))
        before = ids
    return spans
