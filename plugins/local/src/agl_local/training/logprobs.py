"""Log probabilities of chosen tokens under the present weights, differentiable: the trainer's own forward.

``log p(token) = z[token] - logsumexp(z)`` with ``z = logits / temperature``. Guided tokens were sampled from
a subset of the vocabulary: the same subset is summed over here, else training would push against answers that
could not be given. Invariant: for the weights that sampled them, this gives the engine's logprobs (float32,
<= 1e-4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agl_local.network.model import LanguageModel
from agl_local.text.grammar import unpack_bits
from agl_local.training.pack import Packed
from agl_local.training.prefix import hidden_states

# Above this many logits at once (1 GiB in float32) they are recomputed in the backward pass, chunk by chunk.
MAX_LOGITS = 2**28
# Tokens under a grammar whose logits are held at a time: 50 MB of float32 for a vocabulary of 49k.
MASKED_AT_ONCE = 256


@dataclass(frozen=True)
class Guides:
    """The allowed next tokens of M guided tokens."""

    index: Tensor
    """[M] which of the N trained tokens."""
    ids: Tensor
    """[M, K] allowed ids, padded with 0."""
    valid: Tensor
    """[M, K] False on padding."""

    masks: Masks | None = None
    """Of tokens that a grammar allowed: their sets are too large to be listed."""

    def to(self, device: torch.device | str) -> Guides:
        masks = None if self.masks is None else self.masks.to(device)
        return Guides(self.index.to(device), self.ids.to(device), self.valid.to(device), masks)


@dataclass(frozen=True)
class Masks:
    """The allowed next tokens of M tokens that were sampled under a grammar."""

    index: Tensor
    """[M] which of the N trained tokens."""
    bits: Tensor
    """uint8 [M, bytes], one bit for each token of the vocabulary (``text.grammar.unpack_bits``)."""

    def to(self, device: torch.device | str) -> Masks:
        return Masks(self.index.to(device), self.bits.to(device))


@dataclass(frozen=True)
class Scores:
    """Log probabilities [N] and, when asked for, entropies [N] (nats) of the distributions they come from."""

    logprobs: Tensor
    entropy: Tensor | None = None


def token_logprobs(
    model: LanguageModel,
    packed: Packed,
    temperature: Tensor | None = None,
    guides: Guides | None = None,
    entropy: bool = False,
) -> Scores:
    """Score the trained tokens of ``packed`` (all on the model's device). ``temperature`` is [N], all > 0."""
    states = hidden_states(model, packed)[packed.rows, packed.columns]
    if guides is None:
        logprobs, spread = _free(model, states, packed.targets, temperature, entropy)
        return Scores(logprobs, spread)
    free = torch.ones(len(states), dtype=torch.bool, device=states.device)
    free[guides.index] = False
    if guides.masks is not None:
        free[guides.masks.index] = False
    temps = states.new_ones(len(states)) if temperature is None else temperature
    at = guides.index
    places = [free.nonzero()[:, 0], at]
    parts = [
        _free(model, states[free], packed.targets[free], temps[free], entropy),
        _guided(model, states[at], packed.targets[at], temps[at], guides, entropy),
    ]
    for masks in _parts(guides.masks):
        at = masks.index
        places.append(at)
        parts.append(_masked(model, states[at], packed.targets[at], temps[at], masks.bits, entropy))
    order = torch.cat(places).argsort()
    joint = torch.cat([logprobs for logprobs, _ in parts])[order]
    spreads = [spread for _, spread in parts if spread is not None]
    return Scores(joint, torch.cat(spreads)[order] if entropy else None)


Pair = tuple[Tensor, Tensor | None]


def _free(
    model: LanguageModel, states: Tensor, targets: Tensor, temperature: Tensor | None, entropy: bool
) -> Pair:
    """Tokens sampled from the whole vocabulary; chunked where their logits would not fit."""
    chunk = max(1, MAX_LOGITS // model.config.vocab_size)
    if len(states) <= chunk:
        return _score(model, states, targets, temperature, entropy)
    logprobs: list[Tensor] = []
    spread: list[Tensor] = []
    for lo in range(0, len(states), chunk):
        part = slice(lo, lo + chunk)
        temps = None if temperature is None else temperature[part]
        one: Pair = checkpoint(
            _score, model, states[part], targets[part], temps, entropy, use_reentrant=False
        )
        logprobs.append(one[0])
        if one[1] is not None:
            spread.append(one[1])
    return torch.cat(logprobs), torch.cat(spread) if spread else None


def _score(
    model: LanguageModel, states: Tensor, targets: Tensor, temperature: Tensor | None, entropy: bool
) -> Pair:
    logits = _scaled(model.logits(states), temperature)
    if not entropy:
        return -F.cross_entropy(logits, targets, reduction="none"), None
    every = F.log_softmax(logits, dim=-1)
    return every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


def _guided(
    model: LanguageModel, states: Tensor, targets: Tensor, temperature: Tensor, guides: Guides, entropy: bool
) -> Pair:
    """Tokens sampled from the ids that ``guides`` allows; the logits of all others count as −infinity."""
    logits = _scaled(model.logits(states), temperature)
    allowed = logits.gather(1, guides.ids).masked_fill(~guides.valid, float("-inf"))
    total = allowed.logsumexp(dim=-1)
    logprobs = logits.gather(1, targets[:, None])[:, 0] - total
    if not entropy:
        return logprobs, None
    # Padding gets a finite logprob: 0 x -inf would be NaN in the backward pass.
    each = (allowed - total[:, None]).masked_fill(~guides.valid, 0.0)
    return logprobs, -(each.exp() * guides.valid * each).sum(-1)


def _parts(masks: Masks | None) -> Iterator[Masks]:
    """``masks`` in parts of ``MASKED_AT_ONCE`` tokens."""
    for lo in range(0, 0 if masks is None else len(masks.index), MASKED_AT_ONCE):
        part = slice(lo, lo + MASKED_AT_ONCE)
        assert masks is not None
        yield Masks(masks.index[part], masks.bits[part])


def _masked(
    model: LanguageModel, states: Tensor, targets: Tensor, temperature: Tensor, bits: Tensor, entropy: bool
) -> Pair:
    """Tokens sampled under a grammar. Computed again in the backward pass, so that no logits are kept."""
    one: Pair = checkpoint(
        _score_masked, model, states, targets, temperature, bits, entropy, use_reentrant=False
    )
    return one


def _score_masked(
    model: LanguageModel, states: Tensor, targets: Tensor, temperature: Tensor, bits: Tensor, entropy: bool
) -> Pair:
    """The logits of all tokens without a bit count as −infinity."""
    logits = _scaled(model.logits(states), temperature)
    allowed = unpack_bits(bits, logits.shape[1])
    every = F.log_softmax(logits.masked_fill(~allowed, float("-inf")), dim=-1)
    logprobs = every.gather(1, targets[:, None])[:, 0]
    if not entropy:
        return logprobs, None
    # 0 x -inf would be NaN in the backward pass.
    each = every.masked_fill(~allowed, 0.0)
    return logprobs, -(each.exp() * allowed * each).sum(-1)


def _scaled(logits: Tensor, temperature: Tensor | None) -> Tensor:
    """In float32 at least (half precision has too few digits for a ratio of probabilities), over the
    temperature.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return logits if temperature is None else logits / temperature[:, None].to(logits.dtype)
