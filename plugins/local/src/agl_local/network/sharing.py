"""Which slots hold the same columns because one was copied from another, and how a decode step profits.

Samples of one prompt, and agents that begin alike, attend to the same keys: read once for all of them, these
cost a fraction. Invariant: two slots carry the same id for block ``b`` only if their columns before
``(b + 1) * BLOCK`` are copies of one computation, so that it cannot matter which of them is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

BLOCK = 32
# Rows whose queries are stacked against one copy of their columns: more would only pad smaller groups.
_STACK = 8
# Reading one column for a stack costs as much as for so many single rows (measured 1 to 3), and the extra
# operations of a step as much as reading so many columns of a row.
_STACK_COST, _EXTRA_COST = 3, 4096


@dataclass
class Sharing:
    """How the rows of a decode step read columns ``:cut``: in ``G`` stacks of ``size`` rows.

    ``slots`` [G] are those read; ``order`` [G * size] the batch rows by stack (padding repeats a row) and
    ``place`` [B] where each row is in it. ``own_order`` and ``own_place`` are the same for the rows of the
    step's view of the slots. ``data`` keeps what has been read, by layer: those columns do not change.
    """

    cut: int
    size: int
    slots: Tensor
    order: Tensor
    place: Tensor
    own_order: Tensor
    own_place: Tensor
    data: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class Lineage:
    """For every slot, ids of the blocks of columns that it has given to or got from another."""

    def __init__(self, slots: int) -> None:
        self._ids: list[list[int]] = [[] for _ in range(slots)]
        self._next = count()

    def copied(self, source: int, targets: Sequence[int], length: int) -> None:
        """The first ``length`` columns of ``source`` are now those of each of ``targets``."""
        blocks = length // BLOCK
        ids = self._ids[source]
        ids.extend(next(self._next) for _ in range(blocks - len(ids)))
        for target in targets:
            self._ids[target] = ids[:blocks]

    def written(self, slot: int, column: int) -> None:
        """Columns of ``slot`` from ``column`` on are its own from now on."""
        del self._ids[slot][column // BLOCK :]

    def stacks(self, slots: Sequence[int], blocks: int) -> list[list[int]]:
        """Rows (indices of ``slots``) with the same first ``blocks`` blocks, at most ``_STACK`` together."""
        groups: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            ids = self._ids[slot]
            groups.setdefault(ids[blocks - 1] if len(ids) >= blocks else -1 - row, []).append(row)
        return [rows[i : i + _STACK] for rows in groups.values() for i in range(0, len(rows), _STACK)]

    def best(self, slots: Sequence[int], shortest: int, length: int) -> tuple[int, list[list[int]]] | None:
        """The cut, in columns, and the stacks that make reading ``length`` columns cheapest; None: no gain.

        ``shortest``: columns before this are not written in the step, by any row.
        """
        most = min(max(len(self._ids[slot]) for slot in slots), shortest // BLOCK)
        found, least = None, len(slots) * length - _EXTRA_COST
        for blocks in range(1, most + 1, max(1, most // 16)):
            cut = blocks * BLOCK
            stacks = self.stacks(slots, blocks)
            cost = len(slots) * (length - cut) + _STACK_COST * len(stacks) * cut
            if cost < least:
                found, least = (cut, stacks), cost
        return found


def arrange(cut: int, stacks: list[list[int]], slots: Tensor, view_rows: Tensor | None, view: int) -> Sharing:
    """The tensors of a ``Sharing``; ``view_rows`` [B] are the batch rows inside a view of ``view`` slots
    (None: the same).
    """
    size = max(map(len, stacks))
    padded = [rows + rows[:1] * (size - len(rows)) for rows in stacks]
    place = [0] * len(slots)
    for stack, rows in enumerate(stacks):
        for at, row in enumerate(rows):
            place[row] = stack * size + at
    device = slots.device
    order = torch.tensor(padded, device=device).view(-1)
    places = torch.tensor(place, device=device)
    own_order, own_place = order, places
    if view_rows is not None:
        own_order = view_rows[order]
        own_place = places.new_zeros(view)
        own_place[view_rows] = places
    return Sharing(cut, size, slots[order[::size]], order, places, own_order, own_place)
