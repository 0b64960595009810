"""Rows of credit as tensors: one entry per trained token, so that a loss reads like its formula.

Invariant: what a row says is either used or refused by name (``RowError``); nothing is clamped, padded or
guessed here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from agentlightning.types import Row
from agl_local.network.sampling import allowed_next
from agl_local.text.grammar import GrammarCompiler, GrammarError
from agl_local.training.logprobs import Guides, Masks
from agl_local.training.pack import Packed, micro_batches, pack


class RowError(ValueError):
    """A row that cannot be trained; the text names the row, the position and what is wrong."""


@dataclass(frozen=True)
class Tokens:
    """The N trained tokens of a few rows: per-token tensors [N], in row order then position order."""

    packed: Packed
    old: Tensor
    """Behaviour log probabilities, as captured when the token was sampled."""
    advantages: Tensor
    weights: Tensor
    """Share in the loss; they sum over the step's batch as the recipe's ``loss_aggregation`` says."""
    versions: Tensor
    """Policy version that sampled the token."""
    off_policy: Tensor
    """Bool: drawn from another distribution than the policy's, with the probability ``exp(old)``."""
    temperature: Tensor
    segments: Tensor
    """Index (0, 1, …) of the call that the token belongs to, for sequence-level objectives."""
    guides: Guides | None
    row_ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.old)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Tokens:
        """On ``device``; floating tensors become ``dtype``."""
        moved = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                value = value.to(device, dtype) if value.is_floating_point() else value.to(device)
            elif isinstance(value, Packed | Guides):
                value = value.to(device)
            moved[field.name] = value
        return replace(self, **moved)


def tokens_of(
    rows: Sequence[Row],
    eos_ids: Sequence[int] = (),
    share: bool = False,
    grammars: GrammarCompiler | None = None,
) -> Tokens:
    """Tensors of ``rows`` on the CPU (floats in float64). Rows must have passed ``check_row``.

    ``eos_ids`` are the engine's end tokens: the first ends a complete guided answer. ``grammars`` makes the
    masks of rows that were sampled under grammars.
    """
    trained = [trained_positions(row) for row in rows]
    read = [read_lengths(row, eos_ids) for row in rows]
    packed = pack([row.token_ids for row in rows], trained, share, read)
    on = [_tensor(row.mask, torch.int8).bool() for row in rows]

    def trained_of(name: str, kind: torch.dtype) -> Tensor:
        parts = [_tensor(getattr(row, name), kind)[at] for row, at in zip(rows, on, strict=True)]
        return torch.cat(parts) if parts else torch.empty(0, dtype=kind)

    return Tokens(
        packed=packed,
        old=trained_of("logprobs", torch.float64),
        advantages=trained_of("advantages", torch.float64),
        weights=trained_of("weights", torch.float64),
        versions=trained_of("versions", torch.int32).long(),
        off_policy=torch.tensor(_off_policy(rows, trained), dtype=torch.bool),
        temperature=torch.tensor([row.temperature for row in rows], dtype=torch.float64)[packed.rows],
        segments=torch.tensor(_segments(rows, trained), dtype=torch.long),
        guides=_guides(rows, trained, eos_ids, grammars),
        row_ids=tuple(row.row_id for row in rows),
    )


def trained_positions(row: Row) -> list[int]:
    """Positions of the trained tokens of ``row``, ascending."""
    found: list[int] = _tensor(row.mask, torch.int8).nonzero()[:, 0].tolist()
    return found


def read_lengths(row: Row, eos_ids: Sequence[int]) -> list[int]:
    """From how many tokens of ``row`` each trained one is predicted: all before it.

    A guided token that had no alternative has probability 1, and no gradient, whatever it is predicted from.
    It is predicted from what the token before it was, so that a pass ends where the last decision is made.
    """
    certain = {t for t, allowed in _allowed(row, eos_ids) if len(allowed) == 1}
    read: list[int] = []
    for t in trained_positions(row):
        read.append(read[-1] if t in certain and read else t)
    return read


def micro_rows(
    rows: Sequence[Row], max_tokens: int, share: bool = False, eos_ids: Sequence[int] = ()
) -> Iterator[list[Row]]:
    """``rows`` in micro-batches of at most ``max_tokens`` computed positions. ``share``: they will be packed
    with ``share=True``.
    """
    read = [read_lengths(row, eos_ids) for row in rows]
    for group in micro_batches([row.token_ids for row in rows], read, max_tokens, share):
        yield [rows[i] for i in group]


def has_gradient(row: Row) -> bool:
    """False when every trained token has advantage 0 (or weight 0): its policy gradient is exactly zero."""
    return any(a and w for a, w in zip(row.advantages, row.weights, strict=True))


def check_row(
    row: Row,
    vocab_size: int,
    *,
    segments: bool = False,
    eos_ids: Sequence[int] = (),
    grammars: GrammarCompiler | None = None,
) -> None:
    """Raise RowError unless ``row`` can be trained. ``segments``: each trained token must belong to a trained
    segment.
    """
    size = len(row.token_ids)
    for name in ("mask", "advantages", "logprobs", "weights", "versions"):
        if len(getattr(row, name)) != size:
            raise RowError(
                f"row {row.row_id}: {name} has {len(getattr(row, name))} entries for {size} tokens"
            )
    if not (row.temperature > 0 and math.isfinite(row.temperature)):
        raise RowError(
            f"row {row.row_id}: temperature {row.temperature} (a greedy answer cannot be trained on)"
        )
    if size and not 0 <= min(row.token_ids) <= max(row.token_ids) < vocab_size:
        raise RowError(f"row {row.row_id}: a token id lies outside the vocabulary of {vocab_size}")
    owned = _owners(row) if segments else {}
    for t in trained_positions(row):
        _check_token(row, t)
        if segments and t not in owned:
            raise RowError(
                f"row {row.row_id}, position {t}: trained, but in no trained segment (ratio_level 'sequence')"
            )
    for t, allowed in _allowed(row, eos_ids):
        if row.token_ids[t] not in allowed:
            raise RowError(
                f"row {row.row_id}, position {t}: token {row.token_ids[t]} is not among the allowed answers"
            )
    for _ in _masks(row, grammars):  # raises for a token that the grammar does not allow
        pass


def _check_token(row: Row, t: int) -> None:
    where = f"row {row.row_id}, position {t}"
    if t == 0:
        raise RowError(f"{where}: the first token has nothing before it to be predicted from")
    if not math.isfinite(row.advantages[t]):
        raise RowError(f"{where}: advantage {row.advantages[t]}")
    if not (math.isfinite(row.weights[t]) and row.weights[t] >= 0):
        raise RowError(f"{where}: weight {row.weights[t]} must be finite and not negative")
    # The slack is for engines that round log(1) to a little above zero.
    if not (math.isfinite(row.logprobs[t]) and row.logprobs[t] <= 1e-3):
        raise RowError(f"{where}: logprob {row.logprobs[t]} is no natural-log probability of a sampled token")


def _owners(row: Row) -> dict[int, int]:
    """Position → index of its trained segment in ``row.segments``."""
    return {t: i for i, s in enumerate(row.segments) if s.trained for t in range(s.start, s.end)}


def _segments(rows: Sequence[Row], trained: Sequence[Sequence[int]]) -> list[int]:
    """A number per call, unique over ``rows``; tokens in no segment (allowed for token objectives) share one
    per row.
    """
    number: dict[tuple[int, int], int] = {}
    out: list[int] = []
    for i, (row, positions) in enumerate(zip(rows, trained, strict=True)):
        owners = _owners(row)
        out.extend(number.setdefault((i, owners.get(t, -1)), len(number)) for t in positions)
    return out


def _off_policy(rows: Sequence[Row], trained: Sequence[Sequence[int]]) -> list[bool]:
    """Whether each trained token was drawn from another distribution than the policy's."""
    out: list[bool] = []
    for row, positions in zip(rows, trained, strict=True):
        spans = [(s.start, s.end) for s in row.segments if s.trained and s.off_policy]
        out.extend(any(start <= t < end for start, end in spans) for t in positions)
    return out


def _allowed(row: Row, eos_ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """(position, allowed ids) of each trained token that was sampled under a guided choice."""
    for start, answers in row.allowed.items():
        for t in range(start, _end(row, start, "guided answers")):
            if row.mask[t]:
                yield t, allowed_next(answers, row.token_ids[start:t], eos_ids)


def _masks(row: Row, grammars: GrammarCompiler | None) -> Iterator[tuple[int, Tensor]]:
    """(position, bits of the allowed ids) of each trained token that was sampled under a grammar."""
    for start, grammar in row.grammars.items():
        if grammars is None:
            raise RowError(
                f"row {row.row_id}: sampled under a grammar, and no tokenizer is given to mask by it"
            )
        end = _end(row, start, "a grammar")
        try:
            bits = grammars.bits(grammar, row.token_ids[start:end])
        except GrammarError as error:
            raise RowError(f"row {row.row_id}, response at position {start}: {error}") from error
        yield from ((t, bits[t - start]) for t in range(start, end) if row.mask[t])


def _end(row: Row, start: int, what: str) -> int:
    """The end of the segment that begins at ``start``."""
    for segment in row.segments:
        if segment.start == start:
            return segment.end
    raise RowError(f"row {row.row_id}: {what} at position {start}, where no segment starts")


def _guides(
    rows: Sequence[Row],
    trained: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    grammars: GrammarCompiler | None,
) -> Guides | None:
    found: list[tuple[int, list[int]]] = []
    masked: list[tuple[int, Tensor]] = []
    offset = 0
    for row, positions in zip(rows, trained, strict=True):
        if row.allowed or row.grammars:
            place = {t: offset + i for i, t in enumerate(positions)}
            found.extend((place[t], ids) for t, ids in _allowed(row, eos_ids))
            masked.extend((place[t], bits) for t, bits in _masks(row, grammars))
        offset += len(positions)
    if not found and not masked:
        return None
    width = max((len(ids) for _, ids in found), default=1)
    ids = torch.zeros(len(found), width, dtype=torch.long)
    valid = torch.zeros(len(found), width, dtype=torch.bool)
    for row_ids, row_valid, (_, own) in zip(ids, valid, found, strict=True):
        row_ids[: len(own)] = torch.tensor(own, dtype=torch.long)
        row_valid[: len(own)] = True
    masks = None
    if masked:
        index = torch.tensor([n for n, _ in masked], dtype=torch.long)
        masks = Masks(index, torch.stack([bits for _, bits in masked]))
    return Guides(torch.tensor([n for n, _ in found], dtype=torch.long), ids, valid, masks)


def _tensor(values: Any, kind: torch.dtype) -> Tensor:
    """Numbers of a row; an array is read without a copy."""
    if isinstance(values, array) and values:
        return torch.frombuffer(values, dtype=kind)
    return torch.tensor(values, dtype=kind)
