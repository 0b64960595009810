"""The network over tiles: forward passes of one shape, so that a token's result depends on no neighbour.

A matrix product rounds differently for 1 row and for 60, so what a batched engine computes for a token
differs in the last bits with the batch it falls into. Here every product has the same shape always: ``TILE``
tokens, of any slots and positions, padding included; attention goes over blocks of ``BLOCK`` columns, as many
as a token's position needs, and adds them up from left to right (further blocks, which a neighbour may need,
add exact zeros). Invariant: the hidden state of a token, and the key and value it leaves in the cache, are
the same bits in any row of a tile, beside any other tokens, and in a cache of any size; ``invariance.check``
tests it on the machine at hand.

The idea of batch-invariant kernels: https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agl_local.network.kv import KVCache
from agl_local.network.model import CausalLM, Layer

TILE = 16
"""Tokens of a pass."""
BLOCK = 128
"""Columns of the cache that one product of attention reads."""
LANES = 64
"""Logits are padded to a multiple of this: rows then begin at like addresses and have no remainder."""


class Token(NamedTuple):
    """A token to feed: its id and where its key and value go."""

    id: int
    slot: int
    position: int


@dataclass(frozen=True)
class Plan:
    """Of one tile. ``written``: as ``kv.StepPlan.written``. ``blocks`` [2 * TILE * kv_heads]: where the first
    block of keys and of values of each token and head lies among all of a layer's blocks. ``bias``: for each
    block of columns what is added to its scores, [TILE * kv_heads, 1, BLOCK]; 0 where a token may read, else
    -inf.
    """

    written: Tensor
    blocks: Tensor
    bias: list[Tensor]


class Tiles:
    """``model`` over a cache of its own; tokens of a slot must be fed in order of their positions."""

    def __init__(self, model: CausalLM, slots: int, max_len: int) -> None:
        self.model = model
        # One more slot, for padding, and whole blocks of columns: the last one must not be narrower in one
        # engine than in another. (The cache adds a column, and the last token of ``max_len`` is never fed.)
        self._padding = Token(0, slots, 0)
        self._count = -(-max_len // BLOCK)
        self.cache: KVCache = model.new_cache(slots + 1, self._count * BLOCK - 1)
        places = torch.arange(2 * (slots + 1) * self.cache.kv_heads) * self._count
        self._blocks = places.view(2, slots + 1, self.cache.kv_heads)

    def hidden(self, tokens: Sequence[Token]) -> Tensor:
        """Feed at most ``TILE`` tokens; hidden states [len(tokens), H] before the final norm."""
        full = [*tokens, *[self._padding] * (TILE - len(tokens))]
        ids, slots, positions = torch.tensor(full).unbind(1)
        plan = self._plan(slots, positions)
        rope = (self.cache.rope[0][positions], self.cache.rope[1][positions])
        x: Tensor = self.model.model.embed_tokens(ids)
        for layer in self.model.model.layers:
            assert isinstance(layer, Layer)
            attention = layer.self_attn
            joint = attention.joint(layer.input_layernorm(x), rope)
            self.cache.write(attention.layer, plan.written, joint[:, attention.heads :])
            x = x + attention.o_proj(self._attend(joint[:, : attention.heads], attention.layer, plan))
            x = x + layer.mlp(layer.post_attention_layernorm(x), packed=True)
        return x[: len(tokens)]

    def logits(self, hidden: Tensor) -> Tensor:
        """Of at most ``TILE`` hidden states: [len(hidden), V rounded up to ``LANES``], -inf beyond V."""
        full = hidden.new_zeros(TILE, hidden.shape[1])
        full[: len(hidden)] = hidden
        return pad_rows(self.model.logits(self.model.model.norm(full)))[: len(hidden)]

    def _plan(self, slots: Tensor, positions: Tensor) -> Plan:
        top = int(positions.max())
        if top >= self.cache.max_len:
            raise ValueError(f"position {top} is outside a cache of {self.cache.max_len} tokens")
        bias = []
        for start in range(0, top + 1, BLOCK):
            later = torch.arange(start, start + BLOCK) > positions[:, None]
            one = torch.zeros(later.shape).masked_fill_(later, float("-inf"))
            bias.append(one.repeat_interleave(self.cache.kv_heads, dim=0)[:, None])
        written = self.cache.places(slots[:, None], positions[:, None])
        return Plan(written, self._blocks[:, slots].flatten(), bias)

    def _attend(self, q: Tensor, layer: int, plan: Plan) -> Tensor:
        """``q`` [TILE, heads, D] over the columns of each token's slot up to its own; [TILE, heads * D]."""
        rows, size = TILE * self.cache.kv_heads, q.shape[-1]
        own = q.reshape(rows, -1, size)
        blocks = self.cache.data[layer].view(-1, BLOCK * size)
        scores, values = [], []
        for i, bias in enumerate(plan.bias):
            keys, found = blocks.index_select(0, plan.blocks + i).view(2, rows, BLOCK, size)
            scores.append(torch.baddbmm(bias, own, keys.transpose(1, 2), alpha=size**-0.5))
            values.append(found)
        # The maximum is exact in any order; sums are made block by block.
        top = scores[0].amax(dim=-1, keepdim=True)
        for block in scores[1:]:
            top = torch.maximum(top, block.amax(dim=-1, keepdim=True))
        total, out = torch.zeros_like(top), torch.zeros_like(own)
        for block, found in zip(scores, values, strict=True):
            weights = block.sub_(top).exp_()
            total += weights.sum(dim=-1, keepdim=True)
            out += torch.bmm(weights, found)
        return (out / total).view(TILE, -1)


def pad_rows(logits: Tensor) -> Tensor:
    """``logits`` [B, V] with -inf up to a multiple of ``LANES``: tokens that are never drawn."""
    return F.pad(logits, (0, -logits.shape[1] % LANES), value=float("-inf"))
