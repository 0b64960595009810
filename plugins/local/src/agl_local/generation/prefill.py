"""Prompts into the cache: in waves, so that samples of a group and prompts with a common beginning compute it
once.

Invariant: whichever wave or batch a prompt falls into, its slot ends up with the keys and values of its
tokens; but for the last token where that is all that is left to compute, or where the cache cannot be cut: a
decode step does that, and until then others of the same prompt take the slot as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agl_local.generation.confined import Logits, confined_to
from agl_local.generation.request import Sample
from agl_local.generation.slots import SlotTable
from agl_local.generation.stats import Stats
from agl_local.network.model import LanguageModel
from agl_local.network.sending import sent_list

# A prompt waits for the next wave when that spares at least so many tokens.
_WORTH_WAITING = 32
# A shorter common prefix costs more, by mixing plain prompts with continued ones, than it saves.
_WORTH_REUSING = 8
# Tokens of one row, and of all rows, in one forward: what a core's cache holds; padding is at most half
# of it.
_CHUNK, _BATCH = 512, 1024


@dataclass
class Row:
    """The part ``start:`` of a sample's tokens that is still to be computed."""

    sample: Sample
    start: int
    ids: list[int]


def prefill(
    model: LanguageModel,
    table: SlotTable,
    samples: Sequence[Sample],
    stats: Stats,
    eos_ids: Sequence[int],
) -> Iterator[tuple[list[Sample], Logits | None]]:
    """Admit ``samples`` to slots, compute their prompts; yields samples and next-token logits, or None for
    samples whose last token is left to a decode step.
    """
    left = list(samples)
    while left:
        wave, left = next_wave(table, left, stats)
        table.flush()
        ready = [row.sample for row in wave if len(row.ids) == 1]
        if ready:
            yield ready, None
        for rows in _batches([row for row in wave if len(row.ids) > 1]):
            done = [row.sample for row in rows]
            if not table.cache.cuts:
                _run(model, table, [Row(r.sample, r.start, r.ids[:-1]) for r in rows], stats, None)
                table.filled(done, left=1)
                yield done, None
                continue
            few = confined_to(done, eos_ids)
            only = None if few is None else sent_list(model.device, few)
            logits = Logits(_run(model, table, rows, stats, only), few)
            table.filled(done)
            yield done, logits


def next_wave(table: SlotTable, samples: list[Sample], stats: Stats) -> tuple[list[Row], list[Sample]]:
    """Samples to compute now, and those that do better to wait for one of these."""
    wave: list[Row] = []
    later: list[Sample] = []
    for sample in samples:
        source, length = table.best(sample.packed)
        if length < _WORTH_REUSING:
            source, length = None, 0
        worth = (length + _WORTH_WAITING) * 4
        if len(sample.packed) > worth and any(
            row.sample.packed[:worth] == sample.packed[:worth] for row in wave
        ):
            later.append(sample)
            continue
        start = table.admit(sample, source, length)
        _count(sample, start, stats)
        wave.append(Row(sample, start, [*sample.prompt, *sample.tokens][start:]))
    return wave, later


def _count(sample: Sample, start: int, stats: Stats) -> None:
    if not sample.admitted:
        sample.admitted = True
        sample.reused = start
        stats.prompt_tokens += len(sample.prompt)
        stats.reused_tokens += start
        stats.prefix_hits += start > 0


def _batches(wave: list[Row]) -> Iterator[list[Row]]:
    """Rows of like length together: in a batch the shortest is at least half the longest.

    Fresh prompts come apart from those that continue a prefix: their attention is cheaper.
    """
    batch: list[Row] = []
    for row in sorted(wave, key=lambda r: (r.start > 0, -len(r.ids), r.sample.slot)):
        longest = len(batch[0].ids) if batch else 0
        full = (len(batch) + 1) * min(longest, _CHUNK) > _BATCH
        if batch and (full or 2 * len(row.ids) < longest or (row.start > 0) != (batch[0].start > 0)):
            yield sorted(batch, key=lambda r: r.sample.slot)
            batch = []
        batch.append(row)
    if batch:
        yield sorted(batch, key=lambda r: r.sample.slot)


def _run(
    model: LanguageModel, table: SlotTable, rows: list[Row], stats: Stats, only: Tensor | None
) -> Tensor:
    """Compute all rows in chunks of columns; logits [B, V] of each row's last token, of ``only`` [B, K]."""
    out: list[Tensor | None] = [None] * len(rows)
    longest = max(len(row.ids) for row in rows)
    for offset in range(0, longest, _CHUNK):
        width = min(_CHUNK, longest - offset)
        live = [i for i, row in enumerate(rows) if len(row.ids) > offset]
        logits = _chunk(model, table, [rows[i] for i in live], offset, width, only)
        stats.steps += 1
        for at, i in enumerate(live):
            if len(rows[i].ids) <= offset + width:
                out[i] = logits[at]
    return torch.stack([row for row in out if row is not None])


def _chunk(
    model: LanguageModel, table: SlotTable, rows: list[Row], offset: int, width: int, only: Tensor | None
) -> Tensor:
    ids, positions, last = [], [], []
    for row in rows:
        part = row.ids[offset : offset + width]
        padding = width - len(part)
        first = row.start + offset
        ids.append(part + [0] * padding)
        positions.append([*range(first, first + len(part)), *[-1] * padding])
        last.append(len(part) - 1)
    return model.step(
        torch.tensor(ids),
        torch.tensor(positions),
        table.cache,
        torch.tensor([row.sample.slot for row in rows]),
        torch.tensor(last),
        only,
    )
