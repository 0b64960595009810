"""A key-value cache of fixed slots, one conversation each.

One tensor ``data[layer, k|v, slot, kv_head, column, head_dim]``, allocated once. Column ``c`` of a slot
holds the key and value of the token at position ``c``. Invariant: a row never reads a column beyond its own
position, so what lies there (an earlier tenant, padding) cannot change a result. The last column is
scratch: padding (position -1) is written there.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agl_local.network.config import ModelConfig
from agl_local.network.sharing import BLOCK, Lineage, Sharing, arrange


@dataclass
class StepPlan:
    """Where one step writes and what each of its rows may read.

    ``shape`` is that of the step's positions, [B, Q]; ``written`` [B * Q * 2 * kv_heads] are the rows of
    a layer's data, seen as [-1, head_dim], where keys and values of each token go. ``fresh``: every row
    starts at position 0, so plain causal attention over the step's own keys does, and nothing is read. Else
    columns ``start:stop`` are read of slots ``lo:hi`` as one view (``gather``: of ``slots``, as a copy),
    ``index`` [B] are the rows inside that view (None: all, in order), and ``bias`` is added to scores: 0
    where reading is allowed, else -inf; [rows, 1, Q, columns], or [rows * kv_heads, 1, columns] if Q is 1.
    ``sharing``: how columns ``:start`` are read.
    """

    slots: Tensor
    shape: tuple[int, int]
    written: Tensor
    fresh: bool = False
    start: int = 0
    stop: int = 0
    bias: Tensor | None = None
    lo: int = 0
    hi: int = 0
    index: Tensor | None = None
    gather: bool = False
    sharing: Sharing | None = None

    @property
    def rows(self) -> int:
        """Rows of what is read."""
        return self.shape[0] if self.gather else self.hi - self.lo


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """As ``torch.zeros``; on a CPU the system gives memory page by page, when it is first written to."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size or not hasattr(mmap, "MAP_PRIVATE"):
        return torch.zeros(tuple(shape), dtype=dtype, device=device)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # else a few columns of a head would take 2 MB
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))


class KVCache:
    """Keys and values for ``slots`` conversations of at most ``max_len`` tokens; on a CPU they take as much
    memory as was ever written at a time.
    """

    cuts = True

    def __init__(self, config: ModelConfig, slots: int, max_len: int, rope: tuple[Tensor, Tensor]) -> None:
        """``rope``: cos and sin of every position, [max_len, 1, head_dim]; device and type are theirs."""
        self.slots = slots
        self.max_len = max_len
        self.rope = rope
        device, dtype = rope[0].device, rope[0].dtype
        self.kv_heads = config.num_kv_heads
        shape = (config.num_layers, 2, slots, config.num_kv_heads, max_len + 1, config.head_dim)
        # Zeros, not empty: a masked column has weight 0, and 0 x NaN would still be NaN.
        self.data = zeros(shape, dtype, device)
        # Where key and value of each head begin in a slot 0 of ``data[layer]``, in columns.
        heads = torch.arange(config.num_kv_heads, device=device) * (max_len + 1)
        self._begins = torch.cat((heads, heads + slots * config.num_kv_heads * (max_len + 1)))
        self._lineage = Lineage(slots)
        self._known: tuple[list[int], int, Sharing | None] | None = None

    def plan(self, slots: Tensor, positions: Tensor, there: Sequence[Tensor] | None = None) -> StepPlan:
        """Prepare a step that feeds tokens at ``positions`` [B, Q] (-1 = padding) to ``slots`` [B]. These are
        read; ``there``: positions and slots on the cache's device, if these are not.
        """
        top = int(positions.max())
        if top >= self.max_len:
            raise ValueError(f"position {top} is outside a cache of {self.max_len} tokens")
        batch, queries = positions.shape
        rows, firsts = slots.tolist(), positions[:, 0].tolist()
        if there is not None:
            positions, slots = there
        self.note_writes(rows, firsts)
        plan = StepPlan(slots, (batch, queries), self.places(slots[:, None], positions))
        if queries > 1 and not any(firsts):
            plan.fresh = True
            return plan
        plan.stop = min(-(-(top + 1) // BLOCK) * BLOCK, self.max_len)
        self._choose_view(plan, rows)
        if queries == 1:
            self._share(plan, rows, min(firsts))
        plan.bias = self._bias(plan, positions)
        return plan

    def fixed(self, slots: Tensor, positions: Tensor, columns: int, gather: bool) -> StepPlan:
        """The plan of a decode step that reads ``columns`` of slots ``0:B`` (``gather``: of ``slots`` [B]),
        for tokens at ``positions`` [B, 1] before ``columns``. Nothing of it depends on values, only on
        shapes.
        """
        size = len(slots)
        plan = StepPlan(slots, (size, 1), self.places(slots[:, None], positions), stop=columns, hi=size)
        plan.gather = gather
        plan.bias = self._bias(plan, positions)
        return plan

    def note_writes(self, slots: list[int], firsts: list[int]) -> None:
        """Columns of ``slots`` from ``firsts`` on are written: no other slot has the same any more."""
        for slot, first in zip(slots, firsts, strict=True):
            self._lineage.written(slot, max(first, 0))
        if self._known is not None and self._known[2] is not None and min(firsts) < self._known[2].cut:
            self._known = None

    def begin(self, slot: int, length: int) -> Tensor:
        """Where ``write`` puts the first ``length`` tokens of a conversation that begins anew in ``slot``."""
        self.note_writes([slot], [0])
        at = torch.tensor([[slot]], device=self.data.device)
        return self.places(at, torch.arange(length, device=self.data.device)[None])

    def places(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Where ``write`` puts tokens at ``positions`` [B, Q] of ``slots`` [B, 1]; see ``StepPlan``."""
        columns = torch.where(positions < 0, self.max_len, positions)
        begins = columns + slots * (self.kv_heads * (self.max_len + 1))
        return (begins[..., None] + self._begins).view(-1)

    def _choose_view(self, plan: StepPlan, wanted: list[int]) -> None:
        plan.lo, plan.hi = min(wanted), max(wanted) + 1
        if wanted == list(range(plan.lo, plan.hi)):
            return
        if plan.shape[1] > 1 or plan.hi - plan.lo > 2 * len(wanted):
            plan.gather = True
        else:
            # Nearly contiguous decode rows: attention for a few idle slots costs less than gathering.
            plan.index = plan.slots - plan.lo

    def _share(self, plan: StepPlan, slots: list[int], shortest: int) -> None:
        """Read what several rows have in common once; the choice stands while the same slots go on."""
        if self._known is None or self._known[0] != slots or self._known[1] != plan.stop:
            best = self._lineage.best(slots, shortest, plan.stop)
            made = best and arrange(*best, plan.slots, plan.index, plan.rows)
            self._known = (slots, plan.stop, made)
        plan.sharing = self._known[2]
        plan.start = plan.sharing.cut if plan.sharing else 0

    def _bias(self, plan: StepPlan, positions: Tensor) -> Tensor:
        # Padding may read column 0, whose value is discarded: a row with nothing to read would be NaN.
        positions = positions.clamp(min=plan.start)
        if plan.index is not None:
            spread = positions.new_full((plan.rows, positions.shape[1]), plan.start)
            spread[plan.index] = positions
            positions = spread
        later = torch.arange(plan.start, plan.stop, device=positions.device) > positions[:, :, None]
        bias = torch.zeros(later.shape, device=positions.device, dtype=self.data.dtype)
        bias.masked_fill_(later, float("-inf"))
        if plan.shape[1] == 1:
            return bias.repeat_interleave(self.kv_heads, dim=0)
        return bias[:, None]

    def write(self, layer: int, written: Tensor, kv: Tensor) -> None:
        """Store ``kv`` [B * Q, 2 * kv_heads, head_dim], keys before values, at ``places``."""
        rows = self.data[layer].view(-1, kv.shape[-1])
        rows.index_copy_(0, written, kv.reshape(-1, kv.shape[-1]))

    def read(self, layer: int, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, kv_heads, columns, head_dim]; a view unless the plan gathers."""
        k, v = self.data[layer, 0], self.data[layer, 1]
        if plan.gather:
            return k[plan.slots, :, plan.start : plan.stop], v[plan.slots, :, plan.start : plan.stop]
        at = (slice(plan.lo, plan.hi), slice(None), slice(plan.start, plan.stop))
        return k[at], v[at]

    def read_shared(self, layer: int, sharing: Sharing) -> tuple[Tensor, Tensor]:
        """Keys and values [G * kv_heads, cut, head_dim] of the columns read once a stack."""
        found = sharing.data.get(layer)
        if found is None:
            parts = self.data[layer][:, :, :, : sharing.cut].index_select(1, sharing.slots).flatten(1, 2)
            found = sharing.data[layer] = (parts[0], parts[1])
        return found

    def clear(self, slots: list[int]) -> None:
        """Zero ``slots``: after a failure they may hold NaN, which would leak through masked columns."""
        self.data[:, :, slots] = 0
        self.note_writes(slots, [0] * len(slots))

    def can_give(self, slot: int, length: int) -> bool:
        return True

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        """Give each slot of ``targets`` the first ``length`` columns of slot ``source``."""
        if length and targets:
            prefix = self.data[:, :, source, :, :length]
            for target in targets:
                self.data[:, :, target, :, :length] = prefix
            self._lineage.copied(source, targets, length)
            self._known = None
