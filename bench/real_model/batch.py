"""What the training subjects are given and agree on."""

from __future__ import annotations

from typing import TypedDict

LR = 1e-6
MAX_NORM = 1.0
CLIP = 0.2
BETAS = (0.9, 0.999)
EPS = 1e-8
FORWARD_ROWS = 4
"""Sequences of one forward pass of the subjects that do not share beginnings."""


class Sampled(TypedDict):
    """A prompt, an answer that the model sampled, and what it is worth."""

    prompt: list[int]
    answer: list[int]
    logprobs: list[float]
    """Of the answer's tokens, as the engine sampled them at temperature 1."""
    advantage: float
