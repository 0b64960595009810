"""A key-value cache of fixed slots, one conversation each.

One tensor ``data[layer, k|v, slot, kv_head, column, head_dim]``, allocated once. Column ``c`` of a slot
holds the key and value of the token at position ``c``. Invariant: a row never reads a column beyond its own
position, so what lies there (an earlier tenant, padding) cannot change a result. The last column is
scratch: padding (position -1) is written there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import ModelConfig

# Reading whole blocks keeps the shapes of successive steps equal, so that the allocator re-uses its buffers.
_BLOCK = 32


@dataclass
class StepPlan:
    """Where one step writes and what each of its rows may read.

    ``columns`` [B, Q] are write indices. ``fresh``: every row starts at position 0, so plain causal attention
    over the step's own keys does, and nothing is read. Else ``length`` columns are read of slots ``lo:hi`` as
    one view (``gather``: of ``slots``, as a copy), ``index`` [B] are the rows inside that view (None: all, in
    order), and ``bias`` [rows, 1, Q, length] is added to scores: 0 where reading is allowed, else -inf.
    """

    slots: Tensor
    columns: Tensor
    fresh: bool
    length: int = 0
    bias: Tensor | None = None
    lo: int = 0
    hi: int = 0
    index: Tensor | None = None
    gather: bool = False


class KVCache:
    """Preallocated keys and values for ``slots`` conversations of at most ``max_len`` tokens."""

    def __init__(
        self, config: ModelConfig, slots: int, max_len: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.slots = slots
        self.max_len = max_len
        shape = (config.num_layers, 2, slots, config.num_kv_heads, max_len + 1, config.head_dim)
        # Zeros, not empty: a masked column has weight 0, and 0 x NaN would still be NaN.
        self.data = torch.zeros(shape, device=device, dtype=dtype)

    def plan(self, slots: Tensor, positions: Tensor) -> StepPlan:
        """Prepare a step that feeds tokens at ``positions`` [B, Q] (-1 = padding) to ``slots`` [B]."""
        top = int(positions.max())
        if top >= self.max_len:
            raise ValueError(f"position {top} is outside a cache of {self.max_len} tokens")
        plan = StepPlan(slots, torch.where(positions < 0, self.max_len, positions), fresh=False)
        if positions.shape[1] > 1 and not bool(positions[:, 0].any()):
            plan.fresh = True
            return plan
        plan.length = min(-(-(top + 1) // _BLOCK) * _BLOCK, self.max_len)
        self._choose_view(plan, positions.shape[1])
        plan.bias = self._bias(plan, positions)
        return plan

    def _choose_view(self, plan: StepPlan, queries: int) -> None:
        wanted = plan.slots.tolist()
        plan.lo, plan.hi = min(wanted), max(wanted) + 1
        if wanted == list(range(plan.lo, plan.hi)):
            return
        if queries > 1 or plan.hi - plan.lo > 2 * len(wanted):
            plan.gather = True
        else:
            # Nearly contiguous decode rows: attention for a few idle slots costs less than gathering.
            plan.index = plan.slots - plan.lo

    def _bias(self, plan: StepPlan, positions: Tensor) -> Tensor:
        # Padding may read column 0, whose value is discarded: a row with nothing to read would be NaN.
        if plan.index is not None:
            spread = positions.new_zeros(plan.hi - plan.lo, positions.shape[1])
            spread[plan.index] = positions
            positions = spread
        readable = torch.arange(plan.length, device=positions.device) <= positions.clamp(min=0)[:, :, None]
        bias = torch.zeros(readable.shape, device=positions.device, dtype=self.data.dtype)
        return bias.masked_fill_(~readable, float("-inf"))[:, None]

    def write(self, layer: int, plan: StepPlan, k: Tensor, v: Tensor) -> None:
        """Store ``k`` and ``v`` [B, Q, kv_heads, head_dim]."""
        rows = plan.slots[:, None]
        self.data[layer, 0][rows, :, plan.columns] = k
        self.data[layer, 1][rows, :, plan.columns] = v

    def read(self, layer: int, plan: StepPlan) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, kv_heads, length, head_dim]; a view unless the plan gathers."""
        k, v = self.data[layer, 0], self.data[layer, 1]
        if plan.gather:
            return k[plan.slots, :, : plan.length], v[plan.slots, :, : plan.length]
        return k[plan.lo : plan.hi, :, : plan.length], v[plan.lo : plan.hi, :, : plan.length]

    def clear(self, slots: list[int]) -> None:
        """Zero ``slots``: after a failure they may hold NaN, which would leak through masked columns."""
        self.data[:, :, slots] = 0

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None:
        """Give each slot of ``targets`` the first ``length`` columns of slot ``source``."""
        if length and targets:
            prefix = self.data[:, :, source, :, :length]
            for target in targets:
                self.data[:, :, target, :, :length] = prefix
