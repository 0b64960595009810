"""Decode steps of fixed shapes, on devices that replay a step as one graph.

To launch the operators of a step one by one takes the host several times as long as the device needs for a
small batch. So the rows and the columns of a step are rounded up to a few sizes, a step of each is captured
at its second use (the first makes what libraries make once), and from then on the host copies the step's
numbers into the memory that was captured, and replays. Invariants: logits are those of ``CausalLM.step`` to
rounding; a captured step reads its numbers, the cache and the parameters where they were when it was
captured, so these may change in place only.

CUDA graphs: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agl_local.network.kv import KVCache
from agl_local.network.model import CausalLM
from agl_local.network.sending import sent

log = logging.getLogger(__name__)
_SIZES = 8
"""Numbers of columns that are told apart."""
_SPARSE = 3
"""Reading a slot as a copy costs as much as reading so many where they are."""


class Kind(NamedTuple):
    """What a graph is captured for."""

    rows: int
    columns: int
    gather: bool


class Steps:
    """Decode steps of ``model`` over ``cache``; used by one thread."""

    def __init__(self, model: CausalLM, cache: KVCache) -> None:
        self._model, self._cache = model, cache
        self._device = torch.get_device_module(cache.data.device)
        self._numbers: dict[Kind, Tensor] = {}
        self._graphs: dict[Kind, Any] = {}
        # One for all kinds: what a graph gives would else stay in memory for each.
        size = (cache.slots, model.config.vocab_size)
        self._logits = torch.empty(size, dtype=model.dtype, device=cache.data.device)
        self._captures = True

    @staticmethod
    def serve(device: torch.device) -> bool:
        """Whether ``device`` has graphs."""
        return hasattr(torch.get_device_module(device), "CUDAGraph")

    def __call__(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> Tensor:
        """Feed ``ids`` at ``positions`` to ``slots``, different ones; logits [B, V], which the next step may
        overwrite.
        """
        kind = self._kind(max(positions) + 1, slots)
        self._cache.note_writes(list(slots), list(positions))
        table = [[0, -1, 0 if kind.gather else row, 0] for row in range(kind.rows)]
        for order, (token, position, slot) in enumerate(zip(ids, positions, slots, strict=True)):
            row = order if kind.gather else slot
            table[row][:3] = token, position, slot
            table[order][3] = row
        (numbers,) = sent(self._cache.data.device, torch.tensor(table))
        if kind in self._numbers:
            self._numbers[kind].copy_(numbers)
            self._replay(kind)
        else:
            self._numbers[kind] = numbers
            self._step(kind)
        return self._logits[: len(ids)]

    def _kind(self, length: int, slots: Sequence[int]) -> Kind:
        cache = self._cache
        few, all_ = (min(1 << (n - 1).bit_length(), cache.slots) for n in (len(slots), max(slots) + 1))
        gather = _SPARSE * few < all_
        unit = -(-cache.max_len // _SIZES)
        columns = min(-(-length // unit) * unit, cache.max_len)
        return Kind(few if gather else all_, columns, gather)

    def _step(self, kind: Kind) -> None:
        ids, positions, slots, order = self._numbers[kind].unbind(1)
        plan = self._cache.fixed(slots, positions[:, None], kind.columns, kind.gather)
        states = self._model.through(ids, positions, self._cache, plan)
        self._logits[: kind.rows].copy_(self._model.logits(states.index_select(0, order)))

    def _replay(self, kind: Kind) -> None:
        if kind not in self._graphs and self._captures:
            try:
                self._graphs[kind] = self._captured(kind)
            except RuntimeError as error:
                self._captures = False
                log.warning(
                    "steps are launched one operator after the other: no graph was captured: %s", error
                )
        if kind in self._graphs:
            self._graphs[kind].replay()
        else:
            self._step(kind)

    def _captured(self, kind: Kind) -> Any:
        """A graph. All share their memory: one runs at a time, and none reads what another has left there."""
        graph = self._device.CUDAGraph()
        pool = next((known.pool() for known in self._graphs.values()), None)
        # What other threads of this process launch meanwhile is not captured, and is no error.
        with self._device.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._step(kind)
        return graph
