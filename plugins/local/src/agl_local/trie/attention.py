"""Attention over a trie: every node reads its ancestors and itself. On a CPU block by block, without padding;
on a device many blocks at once.

The backward pass computes the probabilities of a block again, so that between the passes nothing is kept but
queries, keys and values; gradients of shared keys add up in place. Invariant: values and gradients are those
of softmax(q k / sqrt(D)) v over each node's ancestors, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from agl_local.network.product import products
from agl_local.trie.nodes import Block, Stack


def attend(q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block] | Sequence[Stack]) -> Tensor:
    """``q`` [M, heads, D] over ``k`` and ``v`` [N, kv_heads, D]; [M, heads * D]."""
    how = _Stacked if blocks and isinstance(blocks[0], Stack) else _Attention
    out: Tensor = how.apply(q, k, v, blocks)  # type: ignore[no-untyped-call]
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


class _Stacked(torch.autograd.Function):
    """The same over stacks, in whose operators every block of a stack is a part of the batch."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, stacks: Sequence[Stack]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.stacks = stacks
        heads = k.shape[1]
        parts = []
        for stack in stacks:
            weights = _weights_of(_batch(q, stack, heads), _keys(k, stack), stack)
            parts.append(_rows(torch.bmm(weights, _keys(v, stack)), stack))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        grad = grad.reshape(q.shape)
        dk, dv, parts = torch.zeros_like(k), torch.zeros_like(v), []
        heads, scale = k.shape[1], q.shape[2] ** -0.5
        for stack in ctx.stacks:
            queries, given = _batch(q, stack, heads), _batch(grad, stack, heads)
            keys, values = _keys(k, stack), _keys(v, stack)
            weights = _weights_of(queries, keys, stack)
            _add(torch.bmm(weights.transpose(1, 2), given), dv, stack)
            scores = torch.bmm(given, values.transpose(1, 2))
            scores.sub_((scores * weights).sum(-1, keepdim=True)).mul_(weights).mul_(scale)
            parts.append(_rows(torch.bmm(scores, keys), stack))
            _add(torch.bmm(scores.transpose(1, 2), queries), dk, stack)
        return parts[0] if len(parts) == 1 else torch.cat(parts), dk, dv, None


def _weights_of(queries: Tensor, keys: Tensor, stack: Stack) -> Tensor:
    """Probabilities [n * kv_heads, BLOCK * groups, K]."""
    scale = queries.shape[-1] ** -0.5
    scores = torch.baddbmm(queries.new_empty(1, 1, 1), queries, keys.transpose(1, 2), beta=0, alpha=scale)
    blocks, size, width = stack.bias.shape
    scores.view(blocks, -1, size, queries.shape[1] // size, width).add_(stack.bias[:, None, :, None])
    return torch.softmax(scores, dim=-1)


def _batch(x: Tensor, stack: Stack, heads: int) -> Tensor:
    """The stack's rows of ``x`` [M, heads * groups, D] as [n * heads, BLOCK * groups, D], padded by 0."""
    part, (blocks, size, _) = x[slice(*stack.queries)], stack.bias.shape
    if len(part) < blocks * size:
        part = F.pad(part, (0, 0, 0, 0, 0, blocks * size - len(part)))
    part = part.view(blocks, size, heads, -1, x.shape[2])
    return part.transpose(1, 2).reshape(blocks * heads, -1, x.shape[2])


def _rows(batch: Tensor, stack: Stack) -> Tensor:
    """The inverse of ``_batch``: the stack's rows [rows, heads * groups, D]."""
    (first, stop), (blocks, size, _) = stack.queries, stack.bias.shape
    whole = batch.view(blocks, batch.shape[0] // blocks, size, -1, batch.shape[2]).transpose(1, 2)
    return whole.reshape(blocks * size, -1, batch.shape[2])[: stop - first]


def _keys(x: Tensor, stack: Stack) -> Tensor:
    """The rows of ``x`` [N, heads, D] that each block reads, [n * heads, K, D]."""
    found = x.index_select(0, stack.keys.view(-1)).view(*stack.keys.shape, *x.shape[1:])
    return found.transpose(1, 2).reshape(-1, stack.keys.shape[1], x.shape[2])


def _add(grad: Tensor, out: Tensor, stack: Stack) -> None:
    """Add the gradient of what ``_keys`` gave to ``out``."""
    blocks, width = stack.keys.shape
    parts = grad.view(blocks, -1, width, grad.shape[2]).transpose(1, 2)
    out.index_add_(0, stack.keys.view(-1), parts.reshape(-1, *out.shape[1:]))
