"""What the training subjects are given and agree on."""

from __future__ import annotations

from typing import TypedDict

LR = 1e-6
MAX_NORM = 1.0
CLIP = 0.2
BETAS = (0.9, 0.999)
EPS = 1e-8
FORWARD_TOKENS = 2560
"""Tokens of one forward pass of the subjects that do not share beginnings: three of them fit 24 GB."""


class Sampled(TypedDict):
    """A prompt, an answer that the model sampled, and what it is worth."""

    prompt: list[int]
    answer: list[int]
    logprobs: list[float]
    """Of the answer's tokens, as the engine sampled them at temperature 1."""
    advantage: float


def passes(sequences: list[Sampled]) -> list[list[Sampled]]:
    """Return the sequences, which have equal lengths, in parts for one forward pass each."""
    rows = max(1, FORWARD_TOKENS // (len(sequences[0]["prompt"]) + len(sequences[0]["answer"])))
    return [sequences[first : first + rows] for first in range(0, len(sequences), rows)]
