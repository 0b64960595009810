"""How an engine sends its samples through the network: prompts, one more token each, and the draw.

Two ways with one face: ``Batched`` (fast; the last bits of a result depend on who else is in the batch) and
``tiled.Tiled`` (they do not). Invariant: after ``prefill`` and ``decode`` the table's cache holds the keys
and values of every token that was fed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from agl_local.generation.choices import ChoiceTables
from agl_local.generation.confined import Logits, confined_to
from agl_local.generation.prefill import prefill
from agl_local.generation.request import Sample
from agl_local.generation.sampler import Drawn, sample_batch
from agl_local.generation.slots import SlotTable
from agl_local.generation.stats import Stats
from agl_local.network.kv import KVCache
from agl_local.network.model import LanguageModel
from agl_local.network.sending import sent_list
from agl_local.network.steps import Steps
from agl_local.trie.forward import can_share


class Passes(Protocol):
    """What the engine's thread asks for; ``table`` says which sample has which slot."""

    table: SlotTable
    choices: ChoiceTables | None
    """What decides guided choices in one pass, if this way has it."""

    def check(self) -> None:
        """Called once, in the engine's thread, before anything is served. Raises EngineError."""

    def prefill(self, samples: Sequence[Sample]) -> Iterator[tuple[list[Sample], Logits | None]]:
        """Admit ``samples`` to slots and compute what they came with; yields samples and their next-token
        logits, or None for samples whose last token is left to ``decode``.
        """
        ...

    def decode(self, samples: Sequence[Sample]) -> Logits:
        """Feed the last token of each of ``samples``; next-token logits."""
        ...

    def draw(self, logits: Logits, samples: Sequence[Sample], eos_ids: Sequence[int]) -> Drawn:
        """The next token of each of ``samples`` from what ``prefill`` or ``decode`` gave."""
        ...


class Batched:
    """All samples in one pass, whatever their number: ``LanguageModel.step``."""

    def __init__(
        self, model: LanguageModel, slots: int, max_len: int, stats: Stats, eos_ids: Sequence[int]
    ) -> None:
        self.model = model
        self.eos_ids = eos_ids
        cache = model.new_cache(slots, max_len)
        self.table = SlotTable(slots, cache)
        self.stats = stats
        self.choices = ChoiceTables(model, self.table, stats, eos_ids) if can_share(model) else None
        graphs = can_share(model) and isinstance(cache, KVCache) and Steps.serve(model.device)
        self._steps = Steps(model, cache) if graphs else None  # type: ignore[arg-type]

    def check(self) -> None:
        """Nothing is promised that could fail."""

    def prefill(self, samples: Sequence[Sample]) -> Iterator[tuple[list[Sample], Logits | None]]:
        return prefill(self.model, self.table, samples, self.stats, self.eos_ids)

    def decode(self, samples: Sequence[Sample]) -> Logits:
        ids = [last_token(s) for s in samples]
        positions = [len(s.prompt) + len(s.tokens) - 1 for s in samples]
        slots = [s.slot for s in samples]
        few = confined_to(samples, self.eos_ids)
        only = None if few is None else sent_list(self.model.device, few)
        if self._steps is not None:
            logits = self._steps(ids, positions, slots)
            logits = logits if only is None else logits.index_select(1, only)
        else:
            columns = torch.tensor([ids, positions]).unsqueeze(2)
            logits = self.model.step(
                columns[0], columns[1], self.table.cache, torch.tensor(slots), only=only
            )[:, 0]
        self.table.filled(samples)
        self.stats.steps += 1
        return Logits(logits, few)

    def draw(self, logits: Logits, samples: Sequence[Sample], eos_ids: Sequence[int]) -> Drawn:
        return sample_batch(logits, samples, eos_ids)


def last_token(sample: Sample) -> int:
    """The token whose successor is to be drawn."""
    return sample.tokens[-1] if sample.tokens else sample.prompt[-1]
