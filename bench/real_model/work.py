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

from collections.abc import Sequence
from dataclasses import dataclass

from agl_local.network.config import ModelConfig
from agl_local.network.memory import cached_numbers, matrix_numbers


def forward_operations(shape: ModelConfig, spans: Sequence[tuple[int, int]], outputs: int) -> float:
    """Return the operations of a forward pass.

    ``spans`` are the computed positions as (first, end) in their sequences: position t reads t + 1 keys and
    values. ``outputs`` is the number of positions whose logits are needed.
    """
    positions = sum(end - first for first, end in spans)
    read = sum((end * (end + 1) - first * (first + 1)) // 2 for first, end in spans)
    attention = 4.0 * shape.num_layers * shape.num_heads * shape.head_dim * read
    output = shape.hidden_size * shape.vocab_size
    return 2.0 * matrix_numbers(shape) * positions + 2.0 * output * outputs + attention


def decode_seconds(shape: ModelConfig, limits: Limits, batch: int, prompt: int, new: int) -> float:
    """Return the least time in which ``batch`` answers grow by ``new`` tokens behind ``prompt`` tokens.

    Each step reads every weight once, and the keys and values of all conversations.
    """
    total = 0.0
    weights = matrix_numbers(shape) + shape.hidden_size * shape.vocab_size
    for at in range(prompt, prompt + new):
        operations = batch * forward_operations(shape, [(at, at + 1)], 1)
        numbers = weights + cached_numbers(shape) * (at + 1) * batch
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
