"""Rows of credit, as verl's trainer takes them.

A row's prompt ends where its first trained token begins; all behind it is the response, of which the mask
says what is trained. A token carries its weight times its advantage: verl's loss sums over all tokens of the
step, so the carrier's sum is what credit means, whatever the number of rows, micro-batches and ranks. With a
critic a token carries its reward instead, and its weight waits for the advantage that verl makes.
Invariant: every trained token of the step is in exactly one row, with the ids that the engine sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from agentlightning.credit.rows import minibatches
from agentlightning.types import Correction, Recipe, Row, UsageError
from agentlightning.types.arrays import Flags, Floats, Ints, from_either, to_bytes
from agentlightning.types.tokens import TokenIds
from agl_verl.returns import token_rewards

WEIGHTS, SEGMENTS, STALE, OFF_POLICY = "agl_weights", "agl_segments", "agl_stale", "agl_off_policy"
"""Names of the fields that verl does not know, and carries along to the loss."""
OUTSIDE = -1
"""Segment of a token that no trained call wrote."""


class TrainRow(msgspec.Struct, array_like=True):
    """One row. Neighbouring tokens of the response that have equal values form a run, and the columns have
    one entry a run: a row of thousands of tokens has a few dozen.
    """

    prompt: TokenIds
    response: TokenIds
    runs: Ints
    """Tokens of each run."""
    mask: Flags
    carrier: Floats
    """Weight × advantage; with a critic, the reward."""
    weights: Floats
    segments: Ints
    """Which call of the row wrote the run, for sequence objectives."""
    stale: Flags
    """1 where a trained run is not known to be of the version that is trained."""
    off_policy: Flags
    """1 where a trained run was drawn from another distribution than the policy's, with its logprob."""
    logprobs: bytes
    """Of the trained tokens alone, as float32, the precision of engines and of verl."""
    oldest: int
    newest: int
    """Policy versions that its trained tokens were sampled from."""

    @property
    def trained_tokens(self) -> int:
        """Number of trained tokens."""
        return len(self.logprobs) // 4

    @property
    def stale_tokens(self) -> int:
        """Number of trained tokens that may be of another version."""
        return sum(count for count, stale in zip(self.runs, self.stale, strict=True) if stale)

    def columns(self) -> Columns:
        """Return the values of each response token."""
        runs = np.frombuffer(self.runs, np.int32)
        values = (np.repeat(np.frombuffer(getattr(self, name), kind), runs) for name, kind in _RUNS.items())
        found = dict(zip(_RUNS, values, strict=True))
        logprobs = np.zeros(len(self.response))
        logprobs[found["mask"] == 1] = np.frombuffer(self.logprobs, "<f4")
        return Columns(logprobs=logprobs, **found)


@dataclass(frozen=True, slots=True)
class Columns:
    """Values of the response tokens of a row, each an array with one entry a token; see :class:`TrainRow`."""

    mask: np.ndarray[Any, Any]
    logprobs: np.ndarray[Any, Any]
    carrier: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]
    segments: np.ndarray[Any, Any]
    stale: np.ndarray[Any, Any]
    off_policy: np.ndarray[Any, Any]

    def row(self, prompt: TokenIds, response: TokenIds, versions: tuple[int, int]) -> TrainRow:
        """Return the row of these values. ``versions``: the oldest and the newest."""
        columns = [getattr(self, name) for name in _RUNS]
        changes = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        starts = np.flatnonzero(np.concatenate(([True], changes)))
        runs = np.diff(np.append(starts, len(response)))
        values = {
            name: _KINDS[name](column[starts].astype(_RUNS[name]).tobytes())
            for name, column in zip(_RUNS, columns, strict=True)
        }
        trained = self.logprobs[self.mask == 1].astype("<f4").tobytes()
        return TrainRow(
            prompt,
            response,
            Ints(runs.astype(np.int32).tobytes()),
            **values,
            logprobs=trained,
            oldest=versions[0],
            newest=versions[1],
        )


_RUNS: dict[str, type[np.generic]] = {
    "mask": np.int8,
    "carrier": np.float64,
    "weights": np.float64,
    "segments": np.int32,
    "stale": np.int8,
    "off_policy": np.int8,
}
"""Columns that are shipped by runs."""
PIECE = 2**20
"""Bytes of a step that are encoded, and sent, at a time."""
_MAP, _ARRAY = 0x80, b"\xdd"
"""MessagePack's first byte of a map of at most 15 fields, and of an array with a length of four bytes."""
_KINDS: dict[str, Any] = {
    name: {np.int8: Flags, np.int32: Ints, np.float64: Floats}[kind] for name, kind in _RUNS.items()
}


_ZERO = np.zeros(1)
EMPTY = Columns(_ZERO, _ZERO, _ZERO, _ZERO, _ZERO + OUTSIDE, _ZERO, _ZERO).row(
    TokenIds([0]), TokenIds([0]), (0, 0)
)
"""A row of two tokens of which none is trained: verl's mini-batches have equally many rows, and a step has at
least one."""


class Step(msgspec.Struct):
    """What the trainer gets for one step."""

    rows: list[TrainRow]
    share: int = 1
    """Rows of one optimizer step, on all ranks together; :data:`EMPTY` ones fill it up."""
    optimizer_steps: int = 1
    """Those of mini-batches with a gradient: momentum alone would move the weights."""
    empty_steps: int = 0
    """Those of mini-batches without one, which are not made."""
    off_policy_cap: float | None = None
    """The largest importance weight of an off-policy token."""
    correction: Correction | None = None
    """How fresh tokens are weighed where engine and trainer disagree."""

    @property
    def off_policy(self) -> bool:
        """Whether a token was sampled otherwise than the policy: verl's own loss knows no weights for it."""
        return any(any(row.off_policy) for row in self.rows)


class CannotTrain(UsageError, ValueError):
    """A row that the loss would not treat as credit means it."""


def train_row(row: Row, recipe: Recipe, scale: int = 1, version: int = 0) -> TrainRow:
    """``row`` for verl, its weights times ``scale``; ``version`` is trained. Raises CannotTrain for what its
    loss would ignore.
    """
    off_policy = _off_policy(row, recipe)
    start = row.mask.index(1) if row.trained_tokens else -1
    if start < 1:
        what = "has no trained token" if start else "trains its first token, which nothing predicts"
        raise CannotTrain(f"row {row.row_id} {what}")
    mask, versions = np.frombuffer(row.mask, np.int8), np.frombuffer(row.versions, np.int32)
    weights = scale * np.frombuffer(row.weights)
    carrier = token_rewards(row) if recipe.critic else weights * np.frombuffer(row.advantages)
    known = versions[(mask == 1) & (versions >= 0)]
    of_token = {
        "mask": mask,
        "logprobs": np.frombuffer(row.logprobs),
        "carrier": np.asarray(carrier),
        "weights": weights,
        "segments": _segments(row, recipe),
        "stale": (mask == 1) & (versions != version),
        "off_policy": np.frombuffer(off_policy, np.int8),
    }
    columns = Columns(**{name: values[start:] for name, values in of_token.items()})
    ends = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    return columns.row(row.token_ids[:start], row.token_ids[start:], ends)


def _off_policy(row: Row, recipe: Recipe) -> Flags:
    """Which trained tokens were drawn from another distribution than the one that verl computes: the whole
    vocabulary, at the recipe's temperature. Their logprobs are of what they were drawn from.
    """
    masked, elsewhere = row.allowed.keys() | row.grammars.keys(), row.temperature != recipe.temperature
    if recipe.off_policy_cap is None and (masked or elsewhere):
        why = "under a grammar or by guided choice" if masked else f"at temperature {row.temperature}"
        raise CannotTrain(
            f"row {row.row_id}: sampled {why}, which verl's loss does not compute, and recipe.off_policy_cap "
            "is null; set it (say 2.0) to weigh such tokens by importance, or drop the calls with `select`"
        )
    if unknown := masked - {segment.start for segment in row.segments}:
        raise CannotTrain(
            f"row {row.row_id}: an answer was masked at {min(unknown)}, where no segment starts"
        )
    found: Flags = Flags(row.mask if elsewhere else bytes(len(row.token_ids)))
    for segment in row.segments:
        if segment.trained and (segment.off_policy or segment.start in masked):
            found[segment.start : segment.end] = Flags(Flags([1]) * (segment.end - segment.start))
    return found


def _segments(row: Row, recipe: Recipe) -> np.ndarray[Any, Any]:
    """Each token's call, by its place in the row."""
    found = np.full(len(row.token_ids), OUTSIDE, np.int32)
    for number, segment in enumerate(row.segments):
        if segment.trained:
            found[segment.start : segment.end] = number
    levels = {recipe.ratio_level, recipe.correction.level if recipe.correction else "token"}
    if "sequence" in levels and np.any((found == OUTSIDE) & (np.frombuffer(row.mask, np.int8) == 1)):
        raise CannotTrain(f"row {row.row_id}: a trained token is in no trained call (level 'sequence')")
    return found


def step(rows: Sequence[Row], recipe: Recipe, ranks: int = 1, version: int = 0, seed: int = 0) -> Step:
    """The step's rows that have a trained token, in the order in which verl trains them; ``version`` is
    trained, ``seed`` is the run's.

    Mini-batches are those of every driver (:func:`agentlightning.credit.rows.minibatches`): with k
    of them weights are multiplied by k. verl's have equal numbers of rows, a multiple of ``ranks``, and a
    rank takes its part of each in turn, so shorter ones are filled up with rows of nothing.
    """
    wanted = [row for row in rows if row.trained_tokens]
    shares = minibatches(wanted, recipe.minibatches, seed, version)
    made = [[train_row(row, recipe, len(shares), version) for row in share] for share in shares] or [[]]
    each = math.ceil(max(1, *map(len, made)) / ranks)
    dealt = [_dealt(share, ranks, each) for share in made]
    ordered = [row for rank in range(ranks) for share in dealt for row in share[rank]]
    if not recipe.critic:
        pulling = sum(_pulls(share, recipe) for share in made)
    else:  # which mini-batch has a gradient is known when verl has whitened the step's advantages
        pulling = len(made) if _pulls([row for share in made for row in share], recipe) else 0
    return Step(
        ordered,
        each * ranks,
        recipe.epochs * pulling,
        recipe.epochs * (len(shares) - pulling),
        recipe.off_policy_cap,
        recipe.correction,
    )


def _dealt(rows: Sequence[TrainRow], ranks: int, each: int) -> list[list[TrainRow]]:
    """Deal the rows of a mini-batch out to the ranks, ``each`` a rank: the longest first, back and forth, so
    that all have about as many tokens.
    """
    longest = sorted(rows, key=lambda row: -len(row.prompt) - len(row.response))
    filled = [*longest, *[EMPTY] * (ranks * each - len(rows))]
    turns = [filled[n : n + ranks][:: -1 if n // ranks % 2 else 1] for n in range(0, len(filled), ranks)]
    return [[turn[rank] for turn in turns] for rank in range(ranks)]


def _pulls(rows: Sequence[TrainRow], recipe: Recipe) -> bool:
    """Whether the rows have a gradient. A critic sees differences where rewards are equal, but none in a
    single token.
    """
    if rows and (recipe.kl or recipe.entropy):
        return True
    if recipe.critic:
        return sum(row.trained_tokens for row in rows) > 1
    return any(any(row.carrier) for row in rows)


def pieces(value: Step) -> Iterator[bytes]:
    """Return a step as MessagePack, in pieces of :data:`PIECE` bytes and at most a row more. Encoding holds
    the interpreter, and with it every event loop: for one piece at a time.
    """
    encode = msgspec.msgpack.Encoder(enc_hook=to_bytes).encode
    terms = {name: getattr(value, name) for name in Step.__struct_fields__ if name != "rows"}
    piece = bytearray([_MAP | len(terms) + 1])
    for name, term in terms.items():
        piece += encode(name) + encode(term)
    piece += encode("rows") + _ARRAY + len(value.rows).to_bytes(4, "big")
    for row in value.rows:
        piece += encode(row)
        if len(piece) >= PIECE:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def pack(value: Step) -> bytes:
    """As bytes."""
    return b"".join(pieces(value))


def unpack(data: bytes) -> Step:
    """The inverse of :func:`pack`."""
    return msgspec.msgpack.decode(data, type=Step, dec_hook=from_either)
