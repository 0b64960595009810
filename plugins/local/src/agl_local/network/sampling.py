"""From logits to a token: token = f(logits, seed, position), and the log probability a trainer reproduces.

Order: raw logits -> repetition, frequency and presence penalties -> logit_bias -> masks (guided choice,
grammar, min_tokens) -> divided by temperature -> **log_softmax, whose value at the sampled token is the
returned log probability** -> top-k -> top-p -> inverse CDF at a uniform number that is a hash of (seed,
position). Hence:

- a request's tokens depend on no neighbour and no arrival order, and a seed reproduces them;
- the log probability is that of the distribution before top-k/top-p cut it (a trainer's forward at the same
  temperature gives it); at temperature 0 (greedy) it is taken at temperature 1.

Every piece is a pure function, so that a driver can apply the same mask to its own logits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from agentlightning.types import Grammar
from agl_local.network.sending import sent, sent_list

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Sampling:
    """How one request is sampled.

    ``seed`` None: a random one. ``stop_ids``: tokens that end an answer beside the policy's own.
    ``guided_choice``: the allowed answers as token ids. ``grammar``: what the answer's text must be; at most
    one of the two is given.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] | None = None
    guided_choice: tuple[tuple[int, ...], ...] | None = None
    grammar: Grammar | None = None
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        _check(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        _check(
            self.temperature >= 0 and math.isfinite(self.temperature), "temperature", ">= 0", self.temperature
        )
        _check(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        _check(self.top_k >= -1, "top_k", ">= 0 (0 or -1: off)", self.top_k)
        _check(abs(self.frequency_penalty) <= 2, "frequency_penalty", "in [-2, 2]", self.frequency_penalty)
        _check(abs(self.presence_penalty) <= 2, "presence_penalty", "in [-2, 2]", self.presence_penalty)
        _check(0 < self.repetition_penalty < math.inf, "repetition_penalty", "> 0", self.repetition_penalty)
        _check(0 <= self.min_tokens <= self.max_tokens, "min_tokens", "in [0, max_tokens]", self.min_tokens)
        _check(self.top_logprobs >= 0, "top_logprobs", ">= 0", self.top_logprobs)
        if not all(self.stop):
            raise ValueError("stop must not hold an empty string")
        if self.guided_choice is not None and not (self.guided_choice and all(self.guided_choice)):
            raise ValueError("guided_choice needs at least one answer, each of at least one token")
        if self.guided_choice is not None or self.grammar is not None:
            if self.guided_choice is not None and self.grammar is not None:
                raise ValueError("guided_choice and a grammar exclude each other")
            if self.ignore_eos or self.min_tokens:
                what = "a grammar" if self.guided_choice is None else "guided_choice"
                raise ValueError(f"{what} cannot be combined with ignore_eos or min_tokens")

    @property
    def penalised(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1.0)


def _check(sound: bool, name: str, want: str, got: float) -> None:
    if not sound:
        raise ValueError(f"{name} must be {want}, got {got}")


def splitmix64(x: int) -> int:
    """Steele, Lea and Flood's 64-bit mixer: a bijection whose outputs for 0, 1, 2 … look random."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


# Seeded by the system once: asking it for every request would give the interpreter lock away each time.
_random = Random()


def random_bits(count: int) -> int:
    """For seeds and ids: they must differ, not be secret."""
    return _random.getrandbits(count)


def stream_key(seed: int, sample: int) -> int:
    """The key of the ``sample``-th answer (of ``n``) to a request with ``seed``."""
    return splitmix64(splitmix64(seed & _MASK) + sample)


def uniform(key: int, position: int) -> float:
    """A number in [0, 1), a pure function of a stream's key and the index of the token in the response."""
    return (splitmix64(key + position * _GOLDEN) >> 11) * 2.0**-53


def allowed_next(
    choices: Sequence[Sequence[int]], prefix: Sequence[int], eos_ids: Sequence[int]
) -> list[int]:
    """Tokens that may follow ``prefix`` under a guided choice: those that continue an answer, and the (first)
    end token once an answer is complete. Sorted; empty when ``prefix`` ends in an end token.
    """
    size, start = len(prefix), tuple(prefix)
    fits = [choice for choice in choices if tuple(choice[:size]) == start]
    following = {choice[size] for choice in fits if len(choice) > size}
    if any(len(choice) == size for choice in fits):
        following.update(eos_ids[:1])
    return sorted(following)


def penalise(logits: Tensor, sampling: Sampling, prompt: Sequence[int], response: Sequence[int]) -> None:
    """Apply the penalties to one row ``logits`` [V] in place.

    Repetition (arXiv:1909.05858): logits of tokens of prompt or response are divided by it if positive,
    else multiplied. Frequency and presence (OpenAI): subtracted per count, and once, for tokens of the
    response only.
    """
    if sampling.repetition_penalty != 1.0:
        seen = sent_list(logits.device, sorted({*prompt, *response}))
        if seen.numel():
            old = logits[seen]
            factor = sampling.repetition_penalty
            logits[seen] = torch.where(old > 0, old / factor, old * factor)
    if response and (sampling.frequency_penalty or sampling.presence_penalty):
        counts = Counter(response)
        index, times = sent(logits.device, torch.tensor(list(counts)), torch.tensor(list(counts.values())))
        logits[index] -= sampling.frequency_penalty * times.to(logits.dtype) + sampling.presence_penalty


def constrain(
    logits: Tensor,
    sampling: Sampling,
    response: Sequence[int],
    eos_ids: Sequence[int],
    mask: Tensor | None = None,
) -> None:
    """Apply logit_bias, guided choice, a grammar's ``mask`` [V] (True: allowed) and min_tokens to one row
    ``logits`` [V] in place.
    """
    for token, bias in (sampling.logit_bias or {}).items():
        logits[token] += bias
    if sampling.guided_choice is not None:
        allowed = sent_list(logits.device, allowed_next(sampling.guided_choice, response, eos_ids))
        kept = logits[allowed]
        logits.fill_(float("-inf"))
        logits[allowed] = kept
    if mask is not None:
        size = len(mask)  # a tile's logits are padded
        logits[size:] = float("-inf")
        logits[:size].masked_fill_(sent(logits.device, ~mask)[0], float("-inf"))
    if len(response) < sampling.min_tokens and eos_ids:
        logits[sent_list(logits.device, list(eos_ids))] = float("-inf")


def adjusted(
    logits: Tensor,
    sampling: Sampling,
    prompt: Sequence[int],
    response: Sequence[int],
    eos_ids: Sequence[int],
    mask: Tensor | None = None,
) -> Tensor:
    """One row of raw logits [V] to log probabilities [V] in float32: all that comes before top-k, top-p."""
    row = logits.detach().float().clone()
    penalise(row, sampling, prompt, response)
    constrain(row, sampling, response, eos_ids, mask)
    return torch.log_softmax(row / (sampling.temperature or 1.0), dim=-1)


def truncate(logprobs: Tensor, top_k: int, top_p: float) -> Tensor:
    """``logprobs`` [..., V] with all but the ``top_k`` likeliest and the smallest set of mass ``top_p`` set
    to -inf.

    The set of mass ``top_p`` holds every token before which less than ``top_p`` has been summed: never
    empty.
    """
    out = logprobs
    if 0 < top_k < out.shape[-1]:
        values, index = out.topk(top_k)
        out = torch.full_like(out, float("-inf")).scatter_(-1, index, values)
    if top_p < 1.0:
        values, order = torch.softmax(out, dim=-1).sort(descending=True, stable=True)
        cut = (values.cumsum(-1) - values) >= top_p
        out = out.masked_fill(torch.zeros_like(cut).scatter_(-1, order, cut), float("-inf"))
    return out


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse CDF: for each row of ``logprobs`` [B, V] the first token whose cumulated probability exceeds
    ``uniforms`` [B].

    A token of probability 0 is never drawn.
    """
    wide = torch.float32 if logprobs.device.type == "mps" else torch.float64
    cdf = logprobs.exp().cumsum(dim=-1, dtype=wide)
    total = cdf[:, -1:]
    # Rounding must not lift the target to the total: no token's cumulated probability exceeds that.
    target = torch.minimum(
        uniforms.to(wide)[:, None] * total, torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cdf, target, right=True)[:, 0]
