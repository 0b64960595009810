"""Attention over a trie: every node reads its ancestors and itself, block by block, without padding.

The backward pass computes the probabilities of a block again, so that between the passes nothing is kept but
queries, keys and values; gradients of shared keys add up in place. Invariant: values and gradients are those
of softmax(q k / sqrt(D)) v over each node's ancestors, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agl_local.network.product import products
from agl_local.trie.nodes import Block


def attend(q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block]) -> Tensor:
    """``q`` [M, heads, D] over ``k`` and ``v`` [N, kv_heads, D]; [M, heads * D]."""
    out: Tensor = _Attention.apply(q, k, v, blocks)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.blocks = blocks
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        heads = k.shape[1]
        for block in blocks:
            weights = _weights(_stack(q, block, heads), _gather(k, block), block)
            _unstack(products(weights, _gather(v, block).transpose(1, 2)), out, block)
        return out.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        grad = grad.reshape(q.shape)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        heads, scale = k.shape[1], q.shape[2] ** -0.5
        for block in ctx.blocks:
            queries, keys, values = _stack(q, block, heads), _gather(k, block), _gather(v, block)
            given = _stack(grad, block, heads)
            weights = _weights(queries, keys, block)
            _scatter(torch.bmm(weights.transpose(1, 2), given), dv, block)
            scores = products(given, values)
            scores.sub_((scores * weights).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
            _unstack(products(scores, keys.transpose(1, 2)), dq, block)
            _scatter(torch.bmm(scores.transpose(1, 2), queries), dk, block)
        return dq, dk, dv, None


def _weights(queries: Tensor, keys: Tensor, block: Block) -> Tensor:
    """Probabilities [kv_heads, queries * groups, K]."""
    scores = products(queries, keys).mul_(queries.shape[-1] ** -0.5)
    shaped = scores.view(len(keys), len(block.bias), -1, keys.shape[1])
    shaped[..., block.open :].add_(block.bias[:, None])
    return torch.softmax(scores, dim=-1)


def _stack(x: Tensor, block: Block, heads: int) -> Tensor:
    """The block's rows of ``x`` [M, heads * groups, D] as [heads, queries * groups, D]: the query heads of
    one key head are rows of one product.
    """
    part = x[slice(*block.queries)]
    return part.view(len(part), heads, -1, x.shape[2]).transpose(0, 1).reshape(heads, -1, x.shape[2])


def _unstack(stacked: Tensor, out: Tensor, block: Block) -> None:
    """The inverse of ``_stack``, into ``out``."""
    part = out[slice(*block.queries)]
    shape = (len(stacked), len(part), -1, out.shape[2])
    part.view(len(part), len(stacked), -1, out.shape[2]).copy_(stacked.view(shape).transpose(0, 1))


def _gather(x: Tensor, block: Block) -> Tensor:
    """The rows of ``x`` [N, heads, D] that the block reads, as [heads, K, D]."""
    parts = [x[slice(*run)] for run in block.keys]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).transpose(0, 1).contiguous()


def _scatter(gathered: Tensor, out: Tensor, block: Block) -> None:
    """Add the gradient of what ``_gather`` gave to ``out``."""
    at = 0
    for first, stop in block.keys:
        out[first:stop] += gathered[:, at : at + stop - first].transpose(0, 1)
        at += stop - first
