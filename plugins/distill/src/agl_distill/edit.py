"""The edit of a step's batch: advantages from recorded scores. Pure: ``agl verify`` makes it again.

Invariants: the batch depends on credit's batch, the recipe and the body of the link alone; a call that has no
score is in no row, is counted in its ledger under one reason, and the weights of the step are those of a
batch that it was never in.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agentlightning.credit.accounts import row_metrics
from agentlightning.credit.rows import set_weights
from agentlightning.types import Batch, Ledger, Recipe, Row, Segment
from agentlightning.types.arrays import Flags, Floats, Ints
from agl_distill.divergence import advantages

TOKENS = "tokens"
"""Key of ``Row.metadata``: what a teacher said of each token, by name, for ``agl explain``."""
HINT = "hint"
"""Key of ``Row.metadata``: what the teacher was told and the policy was not."""


def pack(values: Iterable[float]) -> str:
    """Return logprobs as float32 in base64: what a link holds."""
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode("ascii")


def unpack(text: str) -> list[float]:
    """Return the logprobs of :func:`pack`."""
    packed = array("f")
    packed.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def edited(batch: Batch, recipe: Recipe, body: Mapping[str, Any]) -> Batch:
    """Return the batch with the teacher's advantages. ``body``: of the link of the edit.

    ``ValueError`` for a call of the batch of which the body says nothing.
    """
    out: Mapping[str, str] = body["left_out"]
    scores = {call: unpack(text) for call, text in body["scores"].items()}
    rows = [one for row in batch.rows if (one := _row(row, scores, out, body)) is not None]
    if out:
        set_weights(rows, recipe)
    ledgers = _ledgers(batch.ledgers, batch.rows, rows, out)
    found = _recounted(batch.metrics, batch.rows, rows, out, recipe)
    policies = {
        name: _recounted(own, _of(batch.rows, name), _of(rows, name), out, recipe)
        for name, own in batch.policies.items()
    }
    return Batch(rows=rows, ledgers=ledgers, metrics=found, policies=policies)


def _row(
    row: Row, scores: Mapping[str, Sequence[float]], out: Mapping[str, str], body: Mapping[str, Any]
) -> Row | None:
    """Return the row with the teacher's advantages, without the calls that are left out; ``None`` if it then
    trains nothing.
    """
    names = ("mask", "advantages", "logprobs", "weights", "versions")
    made = msgspec.structs.replace(
        row,
        **{name: type(held)(held) for name in names if (held := getattr(row, name)) is not None},
        allowed=dict(row.allowed),
        grammars=dict(row.grammars),
        segments=[],
    )
    said = Floats(bytes(8 * len(row.token_ids)))
    for one in row.segments:
        if not one.trained:
            made.segments.append(one)
        elif one.call_id in out:
            made.segments.append(_drop(made, one))
        elif one.call_id in scores:
            made.segments.append(_teach(made, one, scores[one.call_id], said, body["settings"]))
        else:
            raise ValueError(f"the edit of the step says nothing of call {one.call_id!r}")
    hint = body.get("hints", {}).get(row.rollout_id)
    more = {TOKENS: {"teacher": said}, **({} if hint is None else {HINT: hint})}
    made.metadata = {**row.metadata, **more}
    return made if any(segment.trained for segment in made.segments) else None


def _teach(
    row: Row, segment: Segment, theirs: Sequence[float], said: Floats, settings: Mapping[str, Any]
) -> Segment:
    """Add the teacher's advantages to those of the reward; that of the segment is their mean."""
    part = slice(segment.start, segment.end)
    found = advantages(theirs, row.logprobs[part], settings["divergence"], settings["beta"])
    coefficient = settings["coefficient"]
    whole = [own + coefficient * a for own, a in zip(row.advantages[part], found, strict=True)]
    row.advantages[part], said[part] = Floats(whole), Floats(theirs)
    return msgspec.structs.replace(segment, advantage=sum(whole) / len(whole))


def _drop(row: Row, segment: Segment) -> Segment:
    """Take a call out of its row, which keeps it as context."""
    part, n = slice(segment.start, segment.end), segment.end - segment.start
    row.mask[part], row.versions[part] = Flags(bytes(n)), Ints(b"\xff" * 4 * n)
    for values in (row.advantages, row.logprobs, row.weights):
        values[part] = Floats(bytes(8 * n))
    row.allowed.pop(segment.start, None)
    row.grammars.pop(segment.start, None)
    return msgspec.structs.replace(segment, advantage=0.0, trained=False, off_policy=False)


def _apart(rows: Sequence[Row]) -> dict[str, float]:
    """Return how far the policy is from its teacher, over the trained tokens; nothing without any."""
    found = [
        own - theirs
        for row in rows
        for theirs, own, on in zip(row.metadata[TOKENS]["teacher"], row.logprobs, row.mask, strict=True)
        if on
    ]
    return {"distill/reverse_kl": sum(found) / len(found)} if found else {}


def _of(rows: Sequence[Row], policy: str) -> list[Row]:
    return [row for row in rows if row.policy == policy]


def _trained(rows: Sequence[Row]) -> list[Segment]:
    return [segment for row in rows for segment in row.segments if segment.trained]


def _ledgers(
    ledgers: Sequence[Ledger], before: Sequence[Row], after: Sequence[Row], out: Mapping[str, str]
) -> list[Ledger]:
    """Enter the calls that are left out into the ledgers of their rollouts."""
    made: list[Ledger] = []
    for ledger in ledgers:
        was = _trained([row for row in before if row.rollout_id == ledger.rollout_id]) if out else []
        gone = [segment for segment in was if segment.call_id in out]
        if not gone:
            made.append(ledger)
            continue
        reasons = Counter(out[segment.call_id] for segment in gone)
        mine = [row for row in after if row.rollout_id == ledger.rollout_id]
        trained = len(_trained(mine))
        made.append(
            msgspec.structs.replace(
                ledger,
                trained=trained,
                merged=trained - len(mine),
                off_policy=sum(segment.off_policy for segment in _trained(mine)),
                left_out={**ledger.left_out, **reasons},
            )
        )
    return made


def _recounted(
    metrics: Mapping[str, float],
    before: Sequence[Row],
    after: Sequence[Row],
    out: Mapping[str, str],
    recipe: Recipe,
) -> dict[str, float]:
    """Return metrics of credit as they are after the edit."""
    of_rows = row_metrics(before, recipe)
    found = {name: value for name, value in metrics.items() if name not in of_rows}
    found |= row_metrics(after, recipe) | _apart(after)
    trained = _trained(after)
    reasons = Counter(out[one.call_id] for one in _trained(before) if one.call_id in out)
    found |= {"calls_trained": len(trained), "merged": len(trained) - len(after)}
    return {**found, **{f"left_out/{reason}": n for reason, n in sorted(reasons.items())}}
