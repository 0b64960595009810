"""Samples through the network in tiles: the engine's deterministic way (``tile`` says how it can be one).

Invariant: token and log probability of a sample are a function of its prompt, its tokens so far, its
sampling settings, its seed and the weights. Nothing else reaches them, because every pass and every draw has
one shape, and what is taken from a cached prefix is what would be computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from agl_local.generation.choices import ChoiceTables
from agl_local.generation.confined import Logits
from agl_local.generation.invariance import check, network_of
from agl_local.generation.passes import last_token
from agl_local.generation.prefill import next_wave
from agl_local.generation.request import Sample
from agl_local.generation.sampler import Drawn, sample_batch
from agl_local.generation.slots import SlotTable
from agl_local.generation.stats import Stats
from agl_local.network.model import LanguageModel
from agl_local.network.tile import TILE, Tiles, Token

T = TypeVar("T")


class Tiled:
    """``passes.Passes`` over tiles. Raises NotInvariant for a model that has no such way.

    Logits are always those of the whole vocabulary: fewer would be a product of another shape.
    """

    def __init__(
        self, model: LanguageModel, slots: int, max_len: int, stats: Stats, eos_ids: Sequence[int]
    ) -> None:
        self.tiles = Tiles(network_of(model), slots, max_len)
        self.table = SlotTable(slots, self.tiles.cache)
        self.stats = stats
        self.choices: ChoiceTables | None = None
        """A trie is no tile: choices are decoded."""

    def check(self) -> None:
        check(self.tiles.model)

    def prefill(self, samples: Sequence[Sample]) -> Iterator[tuple[list[Sample], Logits | None]]:
        """Prompts one after the other, cut into tiles wherever a tile is full."""
        left = list(samples)
        while left:
            wave, left = next_wave(self.table, left, self.stats)
            self.table.flush()
            tokens = [
                (Token(id_, row.sample.slot, row.start + i), row.sample if i == len(row.ids) - 1 else None)
                for row in wave
                for i, id_ in enumerate(row.ids)
            ]
            for part in _parts(tokens):
                hidden = self._pass([token for token, _ in part])
                ends = [i for i, (_, sample) in enumerate(part) if sample is not None]
                if ends:
                    done = [sample for _, sample in part if sample is not None]
                    self.table.filled(done)
                    yield done, Logits(self.tiles.logits(hidden[ends]))

    def decode(self, samples: Sequence[Sample]) -> Logits:
        tokens = [Token(last_token(s), s.slot, len(s.prompt) + len(s.tokens) - 1) for s in samples]
        logits = torch.cat([self.tiles.logits(self._pass(part)) for part in _parts(tokens)])
        self.table.filled(samples)
        return Logits(logits)

    def draw(self, logits: Logits, samples: Sequence[Sample], eos_ids: Sequence[int]) -> Drawn:
        """``TILE`` rows at a time; where there are fewer, others are drawn beside them and dropped."""
        drawn = Drawn([], [], [])
        for at, part in zip(range(0, len(samples), TILE), _parts(samples), strict=True):
            size = len(part)
            full = logits.values.new_zeros(TILE, logits.values.shape[1])
            full[:size] = logits.values[at : at + size]
            one = sample_batch(Logits(full), [*part, *[part[0]] * (TILE - size)], eos_ids)
            drawn.tokens += one.tokens[:size]
            drawn.logprobs += one.logprobs[:size]
            drawn.top += one.top[:size]
        return drawn

    def _pass(self, tokens: Sequence[Token]) -> Tensor:
        self.stats.steps += 1
        return self.tiles.hidden(tokens)


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + TILE] for at in range(0, len(items), TILE))
