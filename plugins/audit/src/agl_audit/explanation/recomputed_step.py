"""Credit the step of a rollout again, to explain the rollout.

Invariant: the explanation describes the rows that were trained, or is marked as changed since
(:attr:`RecomputedStep.as_trained`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from agentlightning.credit.accounts import policy_batch
from agentlightning.credit.baselines import Advantage
from agentlightning.credit.eligibility import Versions
from agentlightning.credit.fingerprint import fingerprint_rollouts
from agentlightning.types import Batch, Record, Rollout, RolloutFingerprint
from agl_audit.locations import ALL
from agl_audit.run import CannotRecompute, OpenRun
from agl_audit.store.fingerprints import header
from agl_audit.verification.compare import changed_outputs, input_differences


@dataclass(slots=True)
class RecomputedStep:
    """A rollout's record, and the recomputed batch of its step."""

    record: Record
    records: list[Record] = field(default_factory=list)
    """Of all rollouts of the batch."""
    batch: Batch | None = None
    """``None``: not credited; ``note`` says why."""
    out: dict[str, str] = field(default_factory=dict)
    """Call id → why it is not trained."""
    advantages: dict[str, Advantage] = field(default_factory=dict)
    """Call id → how its advantage came about, also where its group has no spread and is left out."""
    fingerprint: RolloutFingerprint | None = None
    as_trained: bool | None = None
    versions: Versions = None
    """Policy version that the rows of the step were built for."""
    note: str = ""
    edits: tuple[str, ...] = ()
    """Names of what edited the batch."""


async def recompute_step(run: OpenRun, rollout: Rollout) -> RecomputedStep:
    """Recompute the step that trained ``rollout``; if none has, its group serves as the step."""
    (record,) = await run.store.records([rollout.rollout_id])
    if rollout.mode != "train":
        return RecomputedStep(
            record, note=f"a rollout of mode {rollout.mode}: it was evaluated, never trained"
        )
    try:
        run.recipe  # noqa: B018 - raises if there is nothing to credit it by
    except CannotRecompute as error:
        return RecomputedStep(record, note=str(error))
    fingerprints = await run.fingerprints(rollout_id=rollout.rollout_id)
    if not fingerprints:
        return await _without_fingerprints(run, record)
    last = max(fingerprints, key=lambda s: s.step)
    mine = [s for s in fingerprints if s.step == last.step]
    ids = [s.rollout_id for s in await run.fingerprints(last.step) if s.policy == last.policy]
    known = await run.known(ids)
    records = await run.store.records([i for i in ids if i in known])
    versions: Versions = {s.policy: s.version for s in mine} if run.trained else last.version
    stands = RecomputedStep(record, fingerprint=last, versions=versions)
    found = _credited(run, stands, records, await run.edits(last.step))
    found.as_trained = len(known) == len(ids) and all(_same(run, found, s) for s in mine)
    if not found.as_trained:
        found.note = "the store has changed since this was trained: run `agl verify` on the run"
    return found


def _same(run: OpenRun, found: RecomputedStep, then: RolloutFingerprint) -> bool:
    """Whether the store still gives the logged fingerprint of the rollout."""
    assert found.batch is not None
    mine = policy_batch(found.batch, then.policy) if run.trained else found.batch
    (now,) = fingerprint_rollouts(mine, [found.record], **header(then))
    return not changed_outputs(then, now) and not any(input_differences(then, now))


async def _without_fingerprints(run: OpenRun, record: Record) -> RecomputedStep:
    """Credit a finished rollout that no step has logged with the finished ones of its group."""
    rollout = record.rollout
    if not rollout.status.final:
        return RecomputedStep(record, note=f"it is {rollout.status}: not credited yet")
    records = [record]
    if rollout.group_id is not None:
        group = await run.store.query_rollouts(group_id=rollout.group_id, limit=ALL)
        records = await run.store.records([r.rollout_id for r in group if r.status.final])
    note = "no step has logged it: credited here with its group alone, as if that were the whole step"
    versions: Versions = dict.fromkeys(run.trained) if run.trained else None
    return _credited(run, RecomputedStep(record, versions=versions, note=note), records)


def _credited(
    run: OpenRun,
    found: RecomputedStep,
    records: list[Record],
    edits: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> RecomputedStep:
    found.records, found.edits = records, (*edits,)
    found.batch = run.credit(records, found.versions, found.out, found.advantages, edits)
    return found
