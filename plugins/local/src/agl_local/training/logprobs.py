"""Log probabilities of chosen tokens under the present weights, differentiable: the trainer's own forward.

``log p(token) = z[token] - logsumexp(z)`` with ``z = logits / temperature``. Guided tokens were sampled from
a subset of the vocabulary: the same subset is summed over here, else training would push against answers that
could not be given. Invariant: for the weights that sampled them, this gives the engine's logprobs (float32,
<= 1e-4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agl_local.network.model import LanguageModel
from agl_local.text.grammar import unpack_bits
from agl_local.training.forward import hidden_states
from agl_local.training.pack import Packed

# Above this many logits they are computed in parts, and again in the backward pass. With their log-softmax
# and its gradient a part takes three times as much: 100 MB in float32, and 0.8 GB on a device, which is to
# launch less: each part adds a whole gradient of the output layer.
MAX_LOGITS = 2**23
DEVICE_LOGITS = 2**26


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
    states = hidden_states(model, packed.inputs)
    temps = states.new_ones(len(packed.at)) if temperature is None else temperature
    chosen = _Chosen(states, packed.at, packed.targets, temps)
    if guides is None:
        return Scores(*_free(model, chosen, entropy))
    free = torch.ones(len(packed.at), dtype=torch.bool, device=states.device)
    free[guides.index] = False
    if guides.masks is not None:
        free[guides.masks.index] = False
    places = [guides.index]
    parts = [_guided(model, chosen[guides.index], guides, entropy)]
    if bool(free.any()):
        places.append(free.nonzero()[:, 0])
        parts.append(_free(model, chosen[places[-1]], entropy))
    for masks in _parts(guides.masks, _at_once(model)):
        places.append(masks.index)
        parts.append(_masked(model, chosen[masks.index], masks.bits, entropy))
    return Scores(*_in_order(places, parts))


Pair = tuple[Tensor, Tensor | None]


def _in_order(places: Sequence[Tensor], parts: Sequence[Pair]) -> Pair:
    """``parts``, of which part i holds the results of tokens ``places[i]``, as one."""
    order = torch.cat(list(places)).argsort()
    spreads = [spread for _, spread in parts if spread is not None]
    joint = torch.cat([logprobs for logprobs, _ in parts])[order]
    return joint, torch.cat(spreads)[order] if spreads else None


@dataclass(frozen=True)
class _Chosen:
    """Tokens to be scored: ``states[at]`` predicts ``targets`` at ``temperature``."""

    states: Tensor
    at: Tensor
    targets: Tensor
    temperature: Tensor

    def __getitem__(self, index: Tensor) -> _Chosen:
        return _Chosen(self.states, self.at[index], self.targets[index], self.temperature[index])


def _at_once(model: LanguageModel) -> int:
    """Tokens whose logits are held at a time."""
    most = MAX_LOGITS if model.device.type == "cpu" else DEVICE_LOGITS
    return max(1, most // model.config.vocab_size)


def _free(model: LanguageModel, tokens: _Chosen, entropy: bool) -> Pair:
    """Tokens sampled from the whole vocabulary, in parts where their logits would take too much memory.

    Tokens that the same state predicts at the same temperature come from one distribution, computed once.
    """
    keys = torch.stack((tokens.at.double(), tokens.temperature.double()))
    kinds, which = torch.unique(keys, dim=1, return_inverse=True)
    at, temperature = kinds[0].long(), kinds[1].to(tokens.temperature.dtype)
    size = _at_once(model)
    if len(at) <= size:
        states = tokens.states.index_select(0, at)
        return _score(model, states, temperature, which, tokens.targets, entropy)
    parts: list[Pair] = []
    places: list[Tensor] = []
    for lo in range(0, len(at), size):
        part = slice(lo, lo + size)
        place = ((which >= lo) & (which < lo + size)).nonzero()[:, 0]
        states, own, targets = (
            tokens.states.index_select(0, at[part]),
            which[place] - lo,
            tokens.targets[place],
        )
        one: Pair = checkpoint(
            _score, model, states, temperature[part], own, targets, entropy, use_reentrant=False
        )
        places.append(place)
        parts.append(one)
    return _in_order(places, parts)


def _score(
    model: LanguageModel, states: Tensor, temperature: Tensor, which: Tensor, targets: Tensor, entropy: bool
) -> Pair:
    """Tokens ``targets`` [N] under the distributions of ``states[which]``."""
    every = F.log_softmax(_scaled(model.logits(states), temperature), dim=-1)
    logprobs = every[which, targets]
    return logprobs, -(every.exp() * every).sum(-1)[which] if entropy else None


def _guided(model: LanguageModel, tokens: _Chosen, guides: Guides, entropy: bool) -> Pair:
    """Tokens sampled from the ids that ``guides`` allows: only those ids have logits."""
    asked = torch.cat((guides.ids, tokens.targets[:, None]), dim=1)
    only, columns = torch.unique(asked, return_inverse=True)
    logits = _scaled(model.logits(tokens.states.index_select(0, tokens.at), only), tokens.temperature).gather(
        1, columns
    )
    allowed = logits[:, :-1].masked_fill(~guides.valid, float("-inf"))
    total = allowed.logsumexp(dim=-1)
    logprobs = logits[:, -1] - total
    if not entropy:
        return logprobs, None
    # Padding gets a finite logprob: 0 x -inf would be NaN in the backward pass.
    each = (allowed - total[:, None]).masked_fill(~guides.valid, 0.0)
    return logprobs, -(each.exp() * guides.valid * each).sum(-1)


def _parts(masks: Masks | None, size: int) -> Iterator[Masks]:
    """``masks`` in parts of ``size`` tokens."""
    for lo in range(0, 0 if masks is None else len(masks.index), size):
        part = slice(lo, lo + size)
        assert masks is not None
        yield Masks(masks.index[part], masks.bits[part])


def _masked(model: LanguageModel, tokens: _Chosen, bits: Tensor, entropy: bool) -> Pair:
    """Tokens sampled under a grammar. Computed again in the backward pass, so that no logits are kept."""
    states = tokens.states.index_select(0, tokens.at)
    one: Pair = checkpoint(
        _score_masked, model, states, tokens.targets, tokens.temperature, bits, entropy, use_reentrant=False
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


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """In float32 at least (half precision has too few digits for a ratio of probabilities), over the
    temperature.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    # The usual temperature is 1: its division would read and write all logits twice more.
    return logits if bool((temperature == 1).all()) else logits / temperature[:, None].to(logits.dtype)
