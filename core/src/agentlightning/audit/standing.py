"""One rollout within the step that trained it: the step's records credited again.

Invariant: what is explained is what was trained, or it is said that the store has changed since
(:attr:`Standing.as_sealed`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from agentlightning.audit.compare import causes, outputs
from agentlightning.audit.run import MOST, CannotRecompute, Run
from agentlightning.credit.policies import part
from agentlightning.credit.seals import seal
from agentlightning.credit.trainable import Versions
from agentlightning.types import Batch, Record, Rollout, Seal


@dataclass(slots=True)
class Standing:
    """A rollout's record and the batch it was part of."""

    record: Record
    records: list[Record] = field(default_factory=list)
    """Of all rollouts of the batch."""
    batch: Batch | None = None
    """``None``: it was never credited; ``note`` says why."""
    compared: Batch | None = None
    """The batch with flat groups kept, so that every group shows all its members."""
    out: dict[str, str] = field(default_factory=dict)
    """Call id → why it is not trained."""
    sealed: Seal | None = None
    as_sealed: bool | None = None
    versions: Versions = None
    """What the rows of the step were built for."""
    note: str = ""


async def standing(run: Run, rollout: Rollout) -> Standing:
    """Where ``rollout`` stands. For one that no step has sealed yet, its group is taken for the step."""
    (record,) = await run.store.records([rollout.rollout_id])
    if rollout.mode != "train":
        return Standing(record, note=f"a rollout of mode {rollout.mode}: it was evaluated, never trained")
    try:
        run.recipe  # noqa: B018 - raises if there is nothing to credit it by
    except CannotRecompute as error:
        return Standing(record, note=str(error))
    seals = await run.seals(rollout_id=rollout.rollout_id)
    if not seals:
        return await _unsealed(run, record)
    last = max(seals, key=lambda s: s.step)
    mine = [s for s in seals if s.step == last.step]
    ids = [s.rollout_id for s in await run.seals(last.step) if s.policy == last.policy]
    known = await run.known(ids)
    records = await run.store.records([i for i in ids if i in known])
    versions: Versions = {s.policy: s.version for s in mine} if run.trained else last.version
    stands = Standing(record, sealed=last, versions=versions)
    found = _credited(run, stands, records)
    found.as_sealed = len(known) == len(ids) and all(_same(run, found, s) for s in mine)
    if not found.as_sealed:
        found.note = "the store has changed since this was trained: run `agl verify` on the run"
    return found


def _same(run: Run, found: Standing, then: Seal) -> bool:
    """Whether a seal of the rollout is what the store gives now."""
    assert found.batch is not None
    mine = part(found.batch, then.policy) if run.trained else found.batch
    remade = seal(
        mine, found.records, run_id=run.run_id, step=then.step, policy=then.policy, version=then.version
    )
    now = next(s for s in remade if s.rollout_id == then.rollout_id)
    return not outputs(then, now) and not any(causes(then, now))


async def _unsealed(run: Run, record: Record) -> Standing:
    """A finished rollout that no step has logged: credited with the finished ones of its group."""
    rollout = record.rollout
    if not rollout.status.final:
        return Standing(record, note=f"it is {rollout.status}: not credited yet")
    records = [record]
    if rollout.group_id is not None:
        group = await run.store.query_rollouts(group_id=rollout.group_id, limit=MOST)
        records = await run.store.records([r.rollout_id for r in group if r.status.final])
    note = "no step has logged it: credited here with its group alone, as if that were the whole step"
    versions: Versions = dict.fromkeys(run.trained) if run.trained else None
    return _credited(run, Standing(record, versions=versions, note=note), records)


def _credited(run: Run, found: Standing, records: list[Record]) -> Standing:
    recipe = run.recipe
    found.records = records
    found.batch = found.compared = run.credit(records, found.versions, out=found.out)
    if recipe.drop_zero_spread:
        kept = msgspec.structs.replace(recipe, drop_zero_spread=False)
        found.compared = run.credit(records, found.versions, kept)
    return found
