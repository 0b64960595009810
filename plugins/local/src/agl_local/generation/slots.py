"""Which conversation each cache slot holds, and who gets which slot.

A slot keeps its tokens after its request has ended. A new prompt takes the longest prefix that any slot
holds: in place when the slot is idle and the prompt extends all of it, else as a copy. (A cache of states
that cannot be cut gives all that a slot holds, or nothing.) Eviction is by least recent use. Invariant: a
slot's ``tokens`` are exactly those whose keys and values, computed with the present weights, are in the
cache; while it has an owner, the first of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentlightning.types.tokens import common_prefix, pack
from agl_local.generation.request import Sample
from agl_local.network.model import SlotCache


@dataclass
class Slot:
    """``tokens`` are packed ids (``types.tokens.pack``); ``owner`` is the sample running here."""

    index: int
    tokens: bytes = b""
    owner: Sample | None = None
    used: int = 0


class SlotTable:
    """All slots of one engine; used by its thread only."""

    def __init__(self, count: int, cache: SlotCache) -> None:
        self.slots = [Slot(i) for i in range(count)]
        self.cache = cache
        self._clock = 0
        self._copies: dict[tuple[int, int], list[int]] = {}

    @property
    def idle(self) -> int:
        return sum(slot.owner is None for slot in self.slots)

    def best(self, packed: bytes) -> tuple[Slot | None, int]:
        """The slot with the longest common prefix and its length in tokens, at most all but the last of
        ``packed``.
        """
        found: Slot | None = None
        length = 0
        limit = len(packed) // 4 - 1
        for slot in self.slots:
            need = (length + 1) * 4
            if length < limit and slot.tokens[:need] == packed[:need]:
                common = common_prefix(slot.tokens, packed, length + 1, limit)
                if self.cache.can_give(slot.index, common):
                    found, length = slot, common
        return found, length

    def admit(self, sample: Sample, source: Slot | None, length: int) -> int:
        """Give ``sample`` a slot holding ``length`` tokens of ``source``; returns the length.

        Copies are collected; ``flush`` must be called before the cache is used.
        """
        if source is not None and source.owner is None and length * 4 == len(source.tokens):
            slot = source
        else:
            idle = [s for s in self.slots if s.owner is None]
            slot = min(idle, key=lambda s: (bool(s.tokens), s.used, s.index))
        if any(src == slot.index for src, _ in self._copies):
            self.flush()
        if source is not None:
            self._touch(source)
            if slot is not source and length:
                self._copies.setdefault((source.index, length), []).append(slot.index)
        # Unknown until the prefill has run: nobody may take a prefix from it before.
        slot.tokens = b""
        slot.owner = sample
        sample.slot = slot.index
        self._touch(slot)
        return length

    def flush(self) -> None:
        """Carry out the copies that ``admit`` collected."""
        for (source, length), targets in self._copies.items():
            self.cache.copy_prefix(source, targets, length)
        self._copies.clear()

    def filled(self, samples: Sequence[Sample], left: int = 0) -> None:
        """All tokens that ``samples`` came with, but for the ``left`` last ones, are in the cache now, for
        others to take too.
        """
        for sample in samples:
            slot = self.slots[sample.slot]
            slot.tokens = slot.tokens or sample.packed[: len(sample.packed) - 4 * left]

    def release(self, sample: Sample, valid: bool = True) -> None:
        """The sample is over; what it computed stays (all but the last token, which was never fed)."""
        slot = self.slots[sample.slot]
        slot.owner = None
        self._touch(slot)
        if not valid:
            self.cache.clear([slot.index])
            slot.tokens = b""
        elif slot.tokens and sample.tokens:
            slot.tokens = pack([*sample.prompt, *sample.tokens[:-1]])
        sample.slot = -1

    def forget(self) -> None:
        """Drop what every slot holds: the weights have changed."""
        for slot in self.slots:
            slot.tokens = b""

    def clear(self) -> None:
        """Forget, free and zero everything: a step has failed half way."""
        self._copies.clear()
        self.cache.clear([slot.index for slot in self.slots])
        for slot in self.slots:
            slot.tokens, slot.owner = b"", None

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used = self._clock
