"""A forest of token sequences in which every equal beginning is stored once: what a forward pass computes.

A node is a token with its whole history. Nodes are numbered depth first, so the nodes below node n are those
from n up to ``end[n]``, and node c is n itself or one of its ancestors exactly when ``c <= n < end[c]``:
attention needs no other rule. Depth first also keeps the work dense. The nodes of a block of consecutive
queries read only the ancestors of the first of them, which are few runs of consecutive nodes, and each other.

Invariant: the nodes are the distinct non-empty prefixes of the sequences, whatever the order they come in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentlightning.types.tokens import WIDTH, TokenIds, common_prefix
from agl_local.network.sending import sent

BLOCK = 128
"""Queries that attend together: more waste scores between branches, fewer cost calls."""

_SCORES = 2**23
"""Scores of one head that a stack has at most: with 16 heads, 0.5 GB in float32."""

Run = tuple[int, int]
"""Consecutive nodes: the first, and the one after the last."""


@dataclass(frozen=True)
class Block:
    """Queries that attend together, and what they read."""

    queries: Run
    """Which of the queries."""
    keys: tuple[Run, ...]
    """Nodes whose keys and values are read, ascending; K in all."""
    open: int
    """So many of the first keys are ancestors of every query."""
    bias: Tensor
    """[queries, K - open] added to the scores of the other keys: 0 for an ancestor, else -inf."""


@dataclass(frozen=True)
class Stack:
    """``n`` blocks of ``BLOCK`` queries as one: attention is a few operators for all of them. A device does
    much in one operator and little in a launch; on a CPU, which launches nothing, padding costs more.
    """

    queries: Run
    """Which of the queries."""
    keys: Tensor
    """[n, K] nodes whose keys and values are read, those of a block with fewer padded."""
    bias: Tensor
    """[n, BLOCK, K] added to scores: 0 for an ancestor, else -inf."""

    @classmethod
    def of(cls, queries: Run, keys: Tensor, nodes: Tensor, end: Tensor) -> Stack:
        """Of the queries at ``nodes`` [M]; ``keys`` is padded with the number of nodes, ``end`` [N] is the
        first node after those below each.
        """
        at = nodes.new_full((len(keys) * BLOCK,), -1)
        at[: len(nodes)] = nodes
        at = at.view(len(keys), BLOCK, 1)
        after = torch.cat((end, end.new_zeros(1)))[keys]
        # A query that is padding reads something, or it would be NaN.
        visible = (keys[:, None] <= at) & (at < after[:, None]) | (at < 0)
        bias = torch.zeros(visible.shape, device=keys.device).masked_fill_(~visible, float("-inf"))
        return cls(queries, keys.clamp(max=len(end) - 1), bias)


@dataclass(frozen=True)
class Trie:
    """N nodes, of which the last hidden states of M are read."""

    ids: Tensor
    """[N] token ids."""
    depths: Tensor
    """[N] positions in their sequences."""
    read: Tensor
    """[M] the nodes that are read, ascending."""
    end: Tensor
    """[N] the first node after those below each."""
    blocks: tuple[Block, ...] | tuple[Stack, ...]
    """Attention of all nodes."""
    last: tuple[Block, ...] | tuple[Stack, ...]
    """Attention in the last layer, of the nodes that are read only."""

    @property
    def computed(self) -> int:
        """Positions that go through the layers."""
        return len(self.ids)

    def to(self, device: torch.device | str) -> Trie:
        """On ``device``, by one copy; its attention in stacks where that is not the CPU."""
        device = torch.device(device)
        if device.type == "cpu":
            return self
        plans = [
            _stacks([block for block in blocks if isinstance(block, Block)], len(self.ids))
            for blocks in (self.blocks, self.last)
        ]
        keys = [keys for plan in plans for _, keys in plan]
        ids, depths, read, end, *sent_keys = sent(device, self.ids, self.depths, self.read, self.end, *keys)
        rest, every, made = iter(sent_keys), torch.arange(len(ids), device=device), []
        for plan, nodes in zip(plans, (every, read), strict=True):
            made.append(tuple(Stack.of(run, next(rest), nodes[slice(*run)], end) for run, _ in plan))
        return Trie(ids, depths, read, end, *made)


def _stacks(blocks: Sequence[Block], nodes: int) -> list[tuple[Run, Tensor]]:
    """The queries of each stack of consecutive ``blocks``, and their keys [n, K], padded with ``nodes``."""
    out: list[tuple[Run, Tensor]] = []
    first = 0
    sizes = [sum(stop - start for start, stop in block.keys) for block in blocks]
    for i in range(1, len(blocks) + 1):
        if i < len(blocks) and (i + 1 - first) * BLOCK * max(sizes[first : i + 1]) <= _SCORES:
            continue
        part = blocks[first:i]
        keys = torch.full((len(part), max(sizes[first:i])), nodes)
        for row, block in zip(keys, part, strict=True):
            found = torch.cat([torch.arange(*run) for run in block.keys])
            row[: len(found)] = found
        out.append(((part[0].queries[0], part[-1].queries[1]), keys))
        first = i
    return out


def depth_first(sequences: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Return the order of packed ``sequences`` in their trie, and how many tokens each has in common with
    the one before it.
    """
    order = sorted(range(len(sequences)), key=sequences.__getitem__)
    before, shared = b"", []
    for i in order:
        shared.append(common_prefix(before, sequences[i]))
        before = sequences[i]
    return order, shared


def batches(sequences: Sequence[bytes], max_nodes: int) -> list[list[int]]:
    """Indices grouped so that the trie of each group has at most ``max_nodes`` nodes.

    A sequence that is longer gets a group of its own. A group that is full ends where its second half has
    least in common with what follows: that beginning is computed again.
    """
    order, shared = depth_first(sequences)
    new = [len(sequences[i]) // WIDTH - common for i, common in zip(order, shared, strict=True)]
    out: list[list[int]] = []
    first = nodes = at = 0
    while at < len(order):
        added = new[at] if at > first else len(sequences[order[at]]) // WIDTH
        if at > first and nodes + added > max_nodes:
            at = _cut(first, at, shared)
            out.append(order[first:at])
            first, nodes = at, 0
            continue
        nodes += added
        at += 1
    return [*out, order[first:]] if order else out


def _cut(first: int, full: int, shared: Sequence[int]) -> int:
    """Where a group that began at ``first`` and has no room for ``full`` ends."""
    return min(range(first + (full - first + 1) // 2, full + 1), key=lambda at: (shared[at], -at))


def plant(sequences: Sequence[bytes], wanted: Sequence[Tensor]) -> tuple[Trie, Tensor]:
    """Return the trie of packed ``sequences``, of which the states at positions ``wanted[i]`` are read, and
    where among the trie's M states each of them is, in the order of ``sequences``.
    """
    trie, at, _ = plant_paths(sequences, wanted)
    return trie, at


def plant_paths(sequences: Sequence[bytes], wanted: Sequence[Tensor]) -> tuple[Trie, Tensor, list[Tensor]]:
    """``plant``, and the nodes of each sequence from its first token on."""
    order, shared = depth_first(sequences)
    lengths = [len(sequences[i]) // WIDTH for i in order]
    growth = _Growth(lengths, shared)
    paths = dict(zip(order, growth.paths, strict=True))
    nodes = torch.cat([paths[i][at] for i, at in enumerate(wanted)]) if wanted else _NONE
    read, at = torch.unique(nodes, return_inverse=True)
    new = b"".join(sequences[i][common * WIDTH :] for i, common in zip(order, shared, strict=True))
    depths = [torch.arange(common, length) for common, length in zip(shared, lengths, strict=True)]
    trie = Trie(
        ids=ids_tensor(TokenIds.unpacked(new)),
        depths=torch.cat(depths) if depths else _NONE,
        read=read,
        end=growth.end,
        blocks=growth.blocks(torch.arange(growth.size)),
        last=growth.blocks(read),
    )
    return trie, at, [paths[i] for i in range(len(sequences))]


_NONE = torch.empty(0, dtype=torch.long)


class _Growth:
    """The nodes of sequences that come depth first: each has ``shared`` tokens in common with the last."""

    def __init__(self, lengths: Sequence[int], shared: Sequence[int]) -> None:
        self.size = 0
        self.firsts: list[int] = []
        """The first new node of each sequence."""
        self.paths: list[Tensor] = []
        """The nodes of each sequence from its first token on."""
        self.runs: list[list[Run]] = []
        """The same as runs."""
        for length, common in zip(lengths, shared, strict=True):
            self._add(length, common)
        self.end = torch.full((self.size,), self.size)
        """[size] the first node after those below each node."""
        for path, first, common in zip(self.paths, self.firsts[1:], shared[1:], strict=False):
            self.end[path[common:]] = first

    def _add(self, length: int, common: int) -> None:
        first, stop = self.size, self.size + length - common
        path, runs = (self.paths[-1], self.runs[-1]) if self.paths else (_NONE, [])
        self.firsts.append(first)
        self.paths.append(torch.cat((path[:common], torch.arange(first, stop))))
        self.runs.append(_joined([*_cut_runs(runs, common), (first, stop)]))
        self.size = stop

    def blocks(self, queries: Tensor) -> tuple[Block, ...]:
        """Attention of the nodes ``queries`` (ascending), a block at a time."""
        return tuple(self._block(queries[lo : lo + BLOCK], lo) for lo in range(0, len(queries), BLOCK))

    def _block(self, queries: Tensor, first: int) -> Block:
        low, high = int(queries[0]), int(queries[-1]) + 1
        owner = bisect_right(self.firsts, low) - 1
        runs = _joined([*_before(self.runs[owner], low), (low, high)])
        keys, at = torch.cat([torch.arange(*run) for run in runs]), queries[:, None]
        visible = (keys <= at) & (at < self.end[keys])
        everywhere = int(visible.all(0).long().cumprod(0).sum())
        hidden = ~visible[:, everywhere:]
        bias = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        return Block((first, first + len(queries)), tuple(runs), everywhere, bias)


def _cut_runs(runs: Sequence[Run], length: int) -> list[Run]:
    """The first ``length`` nodes of ``runs``."""
    out: list[Run] = []
    for first, stop in runs:
        if length <= 0:
            break
        out.append((first, min(stop, first + length)))
        length -= stop - first
    return out


def _before(runs: Sequence[Run], node: int) -> list[Run]:
    """The part of ascending ``runs`` before ``node``."""
    return [(first, min(stop, node)) for first, stop in runs if first < node]


def _joined(runs: Sequence[Run]) -> list[Run]:
    """``runs`` without empty ones, neighbours made one."""
    out: list[Run] = []
    for first, stop in runs:
        if out and out[-1][1] == first:
            out[-1] = (out[-1][0], stop)
        elif stop > first:
            out.append((first, stop))
    return out


def ids_tensor(ids: Sequence[int]) -> Tensor:
    """Token ids as int64; arrays are read without a list between."""
    if isinstance(ids, TokenIds) and len(ids):
        return torch.frombuffer(ids.view(), dtype=torch.int32).long()
    return torch.tensor(list(ids), dtype=torch.long)
