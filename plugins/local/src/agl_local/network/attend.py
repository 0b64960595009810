"""Attention over the key-value cache, in the three shapes that serving has.

``causal``: whole prompts over themselves. ``extend``: several new tokens a row over what its slot holds.
``decode``: one new token a row. Invariant: all give softmax(q k / sqrt(D)) v over the columns up to each
token's own; only the order of summation differs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from agl_local.network.kv import KVCache, StepPlan
from agl_local.network.sharing import Sharing


def attend(q: Tensor, kv: Tensor, layer: int, cache: KVCache, plan: StepPlan) -> Tensor:
    """``q`` [B * Q, heads, D] over the cache, or if the plan is fresh over the step's own ``kv`` [B * Q, 2 *
    kv_heads, D]; gives [B * Q, heads * D].
    """
    if plan.shape[1] == 1:
        return decode(q, layer, cache, plan)
    q = q.reshape(*plan.shape, *q.shape[1:])
    if not plan.fresh:
        return extend(q, *cache.read(layer, plan), plan).flatten(0, 1)
    k, v = kv.reshape(*plan.shape, *kv.shape[1:]).chunk(2, dim=2)
    return causal(q, k, v).flatten(0, 1)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of [B, T, heads, D] over itself; [B, T, heads * D]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1)


def extend(q: Tensor, keys: Tensor, values: Tensor, plan: StepPlan) -> Tensor:
    """``q`` [B, Q, heads, D] over [B, kv_heads, columns, D]; [B, Q, heads * D]."""
    grouped = q.shape[2] != keys.shape[1]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, attn_mask=plan.bias, enable_gqa=grouped
    )
    return out.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)


def decode(q: Tensor, layer: int, cache: KVCache, plan: StepPlan) -> Tensor:
    """``q`` [B, heads, D]: plain products, which beat the fused kernel at this shape; [B, heads * D]."""
    keys, values = (part.flatten(0, 1) for part in cache.read(layer, plan))
    own = q
    if plan.index is not None:
        own = q.new_zeros(plan.rows, *q.shape[1:]).index_copy_(0, plan.index, q)
    # The query heads of one key head are rows of one product.
    own = own.reshape(keys.shape[0], -1, q.shape[-1])
    assert plan.bias is not None
    scores = torch.baddbmm(plan.bias, own, keys.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
    if plan.sharing is None:
        out = torch.bmm(_softmax(scores), values).view(plan.rows, -1)
        return out if plan.index is None else out[plan.index]
    return _decode_shared(q, scores, values, layer, cache, plan, plan.sharing)


def _decode_shared(
    q: Tensor, scores: Tensor, values: Tensor, layer: int, cache: KVCache, plan: StepPlan, sharing: Sharing
) -> Tensor:
    """Join ``scores`` [rows * kv_heads, groups, columns] of each row's own columns with those of the columns
    that its stack reads once: one softmax over both.
    """
    heads, size = cache.kv_heads, sharing.size
    keys, shared_values = cache.read_shared(layer, sharing)
    stacked = _to_stacks(q.index_select(0, sharing.order), size, heads, q.shape[-1])
    before = torch.baddbmm(
        q.new_empty(1, 1, 1), stacked, keys.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5
    )
    mine = scores.view(plan.rows, -1).index_select(0, sharing.own_order)
    after = _to_stacks(mine, size, heads, scores.shape[-1])
    weights = _softmax(torch.cat((before, after), dim=-1))
    out = _to_rows(torch.bmm(weights[..., : sharing.cut], shared_values), size, heads)[sharing.place]
    mine = _to_rows(weights[..., sharing.cut :], size, heads).index_select(0, sharing.own_place)
    own = torch.bmm(mine.view(scores.shape), values).view(plan.rows, -1)
    return out.add_(own if plan.index is None else own[plan.index])


def _softmax(scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


def _to_stacks(x: Tensor, size: int, heads: int, width: int) -> Tensor:
    """[G * size, heads * groups * width] (in any such shape) to [G * heads, size * groups, width]."""
    return x.reshape(-1, size, heads, x.numel() // (x.shape[0] * heads)).transpose(1, 2).reshape(
        -1, size * (x.numel() // (x.shape[0] * heads * width)), width
    )  # fmt: skip


def _to_rows(x: Tensor, size: int, heads: int) -> Tensor:
    """The inverse of ``_to_stacks``: [G * size, heads * groups * width]."""
    stacks = x.shape[0] // heads
    return x.reshape(stacks, heads, size, -1).transpose(1, 2).reshape(stacks * size, -1)
