"""What an engine has done so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stats:
    """Counts since the start.

    ``reused_tokens`` are prompt tokens that needed no computation, of ``prefix_hits`` samples; ``steps`` are
    passes through the network; ``finished`` counts samples, ``cancelled`` and ``failed`` requests;
    ``hints`` requests that asked for an effort or a verbosity, which a policy does not have.
    """

    generated_tokens: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefix_hits: int = 0
    steps: int = 0
    requests: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    hints: int = 0
