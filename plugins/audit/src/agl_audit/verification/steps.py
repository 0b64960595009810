"""Recompute one step from the store and compare it with its records from training.

The step's link in the chain holds its report and the digests of its fingerprints. For a run without a chain
(its links are gone), the report and the fingerprints in the store are trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentlightning.credit.accounts import policy_batch
from agentlightning.credit.digest import canonical_order, digest, plain, rows_digest
from agentlightning.credit.fingerprint import fingerprint_rollouts, terms_digest
from agentlightning.credit.rewards import ROLLOUT, attach_rewards
from agentlightning.types import AuditLink, Batch, Record, Reward, RolloutFingerprint, StepReport
from agentlightning.types.record import effective_reward
from agl_audit.run import OpenRun
from agl_audit.verification.compare import (
    changed_outputs,
    code_difference,
    consequences,
    input_differences,
)
from agl_audit.verification.differences import (
    Difference,
    leaf_differences,
    make_difference,
    read_records,
    value_differences,
)

UNKNOWN = "differs"
"""Stands for the digest of a rollout that was changed, where its own fingerprint is lost."""
Fingerprints = Mapping[str, RolloutFingerprint]
"""Rollout id → its fingerprint."""


@dataclass(slots=True)
class StepCheck:
    """One step of one policy: its logged records, and the present contents of the store."""

    run: OpenRun
    report: StepReport
    """The logged report: that of its link, else that of the store."""
    stored: Fingerprints
    """The step's fingerprints in the store."""
    rollouts: list[str]
    """The rollouts that it trained, in order."""
    logged: dict[str, RolloutFingerprint] = field(default_factory=dict)
    """Fingerprints that are unchanged since they were logged."""
    digests: dict[str, str] = field(default_factory=dict)
    """Rollout → the digest of its fingerprint, if the step has a link."""
    found: list[Difference] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    batch: Batch | None = None
    """Its recomputed rows."""
    edits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What edited its batch, by name."""

    @property
    def version(self) -> int | None:
        """Policy version that its rows were built for."""
        first = next(iter(self.logged.values()), None)
        return self.report.version if self.report.version is not None or first is None else first.version

    def differ(self, kind: str, what: str, rollout: str | None = None, **values: Any) -> Difference:
        """Return a difference in this step."""
        return make_difference(kind, what, step=self.report.step, rollout=rollout, **values)

    async def check(self) -> list[Difference]:
        """Recompute the step and name the differences, causes first."""
        if not self.rollouts:
            return self.found
        self.records, lost = await read_records(self.run, self.rollouts, self.report.step)
        found = [*self.found, *lost, *self._terms()]
        self.edits = await self.run.edits(self.report.step)
        try:
            self.batch, remade = self._remake(self.records)
        except ValueError as error:  # a store that was tampered with may hold what credit refuses
            return [*found, self.differ("uncreditable", f"credit refuses it: {error}")]
        edited = list(self._edited(remade))
        causes = [d for then, now in self._pairs(remade) for d in input_differences(then, now)]
        doubt = [d for d in edited if d.now == UNKNOWN]
        if doubt and not causes:
            found += doubt
        unread = any(d.kind != "report" for d in found)
        rest = self._compare(self.batch, self._changed(remade), causes, unread)
        return [*found, *(d for d in edited if d not in doubt), *rest]

    def _remake(self, records: Sequence[Record]) -> tuple[Batch, Fingerprints]:
        """Credit records again: the rows of the step's policy, and the fingerprints of its rollouts."""
        run, report = self.run, self.report
        versions = report.versions if run.trained else self.version
        batch = run.credit(records, versions, edits=self.edits)
        if run.trained:
            batch = policy_batch(batch, report.policy)
        made = fingerprint_rollouts(
            batch,
            records,
            run_id=report.run_id,
            step=report.step,
            policy=report.policy,
            version=self.version,
        )
        return batch, {one.rollout_id: one for one in made}

    def _pairs(self, remade: Fingerprints) -> list[tuple[RolloutFingerprint, RolloutFingerprint]]:
        """Each rollout's fingerprint as it was logged, and as it was recomputed."""
        return [(self.logged[r], remade[r]) for r in self.rollouts if r in self.logged and r in remade]

    def _changed(self, remade: Fingerprints) -> dict[str, list[str]]:
        """Rollout → its outputs that are not those that were logged."""
        outputs = {then.rollout_id: changed_outputs(then, now) for then, now in self._pairs(remade)}
        return {rollout: names for rollout, names in outputs.items() if names}

    def _terms(self) -> Iterator[Difference]:
        """Compare recipe and failure table in the run's record with those that the step was credited by."""
        then = self.report.terms_digest
        now = terms_digest(self.run.recipe, self.run.failure_table)
        if then is not None and then != now:
            what = "recipe or failure table in the run's record are not those it was credited by"
            yield self.differ("terms", f"{what} (edited after training)", then=then, now=now)

    def _edited(self, remade: Fingerprints) -> Iterator[Difference]:
        """Yield the stored fingerprints that differ from the logged digests. In ``logged`` a recomputed
        fingerprint that has the logged digest takes their place.
        """
        if self.digests and not self.stored:
            what = f"all of its {len(self.digests)} fingerprints are missing (deleted after training)"
            yield self.differ("fingerprints", what, then=len(self.digests), now=0)
        for rollout, then in self.digests.items():
            if rollout in self.logged:
                continue
            now, again = self.stored.get(rollout), remade.get(rollout)
            intact = again is not None and digest(again) == then
            if intact and again is not None:
                self.logged[rollout] = again
            if now is None and self.stored:
                what = "its fingerprint is missing (deleted after training)"
                yield self.differ("fingerprint", what, rollout, then=then)
            elif now is not None:
                names = [path for path, _, _ in leaf_differences(plain(again), plain(now))] if intact else []
                where = f" ({', '.join(names[:4])})" if names else ""
                what = f"its fingerprint was edited after training{where}"
                yield self.differ("fingerprint", what, rollout, then=then, now=digest(now))
            if again is not None and not intact:
                what = "it is not what was trained; without its fingerprint it cannot be said what differs"
                yield self.differ("fingerprint", what, rollout, then=then, now=UNKNOWN)

    def _compare(
        self, batch: Batch, changed: Mapping[str, list[str]], causes: list[Difference], unread: bool
    ) -> list[Difference]:
        """Causes, then their consequences. ``changed``: rollout → outputs that differ; ``unread``: a part of
        the step could not be read.
        """
        if causes or unread:
            if not changed:
                return causes
            roots = list(dict.fromkeys(str(d.rollout_id) for d in causes))
            groups = {record.rollout.rollout_id: record.rollout.group_id for record in self.records}
            follows = consequences(self.report.step, changed, groups, roots)
            return [*causes, follows, *self._explained(causes)]
        if changed:
            versions = self.run.versions()
            return [code_difference(self.logged[r], names, versions) for r, names in changed.items()]
        then, now = self.report.rows_digest, rows_digest(canonical_order(batch.rows))
        if then is not None and then != now:
            what = "its rows equal the fingerprints, and not the digest in its report: one of them was edited"
            return [self.differ("rows", what, then=then, now=now)]
        return list(self._metrics(batch))

    def _metrics(self, batch: Batch) -> Iterator[Difference]:
        """Compare the metrics of credit with the report, if nothing else of the step differs."""
        cause = "the code that makes it has changed, or the chain was made anew" if self.digests else "edited"
        logged = self.report.metrics
        then = {name: logged.get(name) for name in batch.metrics if name in logged}
        now = {name: batch.metrics[name] for name in then}
        source, at = "its rollouts in the store give", self.report.step
        yield from value_differences(
            "report", then, now, source, label="its report's ", cause=cause, recomputed=True, step=at
        )

    def _explained(self, causes: Sequence[Difference]) -> list[Difference]:
        """Restore the logged rewards and recompute: if all outputs match, nothing else has changed."""
        old = {str(d.rollout_id): d.then for d in causes}
        if not causes or any(d.kind != "reward" or d.then is None for d in causes):
            return []
        restored = [
            _with_reward(record, old[name]) if (name := record.rollout.rollout_id) in old else record
            for record in self.records
        ]
        _, remade = self._remake(restored)
        if self._changed(remade):
            what = "even with that put back, rows differ: something else has changed too"
            return [self.differ("code", what)]
        what = "with that put back, every row, advantage and weight of the step equals what was trained"
        return [self.differ("consequence", what)]


def from_store(run: OpenRun, report: StepReport, stored: Sequence[RolloutFingerprint]) -> StepCheck:
    """Return the check of a step without a link: the report and fingerprints in the store are trusted."""
    known = {one.rollout_id: one for one in stored}
    step = StepCheck(run, report, known, [*known], logged={**known})
    if not stored:
        what = "logged without fingerprints, or they were deleted: nothing to compare"
        step.found.append(step.differ("no-fingerprints", what, now=0))
        return step
    trained = report.metrics.get("rollouts")
    if trained is not None and int(trained) != len(stored):
        what = f"its report counts {int(trained)} rollouts, {len(stored)} fingerprints are left"
        step.found.append(step.differ("fingerprints", what, then=int(trained), now=len(stored)))
    for one in stored:
        if one.version != step.version:
            what = f"trained at policy version {one.version}, the step's report says {step.version}"
            step.found.append(
                step.differ("version", what, one.rollout_id, then=step.version, now=one.version)
            )
    return step


def from_link(
    run: OpenRun,
    link: AuditLink,
    report: StepReport | None,
    stored: Sequence[RolloutFingerprint],
    others: Mapping[str, str],
) -> StepCheck:
    """Return the check of a step with a link, and the differences of the store from the link. ``others``:
    :func:`report_digest` of every step's report → the step.
    """
    then = {str(rollout): str(value) for rollout, value in link.body["fingerprints"]}
    logged = msgspec.convert(link.body["report"], StepReport)
    step = StepCheck(run, logged, {one.rollout_id: one for one in stored}, [*then], digests=then)
    step.found += _reported(step, link, report, others)
    for one in stored:
        if one.rollout_id not in then:
            what = "the store has a fingerprint of it, which the step did not log (added after training)"
            step.found.append(step.differ("fingerprint", what, one.rollout_id, now=digest(one)))
        elif digest(one) == then[one.rollout_id]:
            step.logged[one.rollout_id] = one
    return step


def report_digest(report: Any) -> str:
    """Return a digest of a report without the number of its step: equal for copies."""
    return digest({k: v for k, v in plain(report).items() if k != "step"})


def _reported(
    step: StepCheck, link: AuditLink, report: StepReport | None, others: Mapping[str, str]
) -> Iterator[Difference]:
    """Compare the store's report with that of the link."""
    if report is None:
        yield step.differ("step", "its report is missing (deleted after training)")
        return
    then, now = link.body["report"], plain(report)
    at = step.report.step
    found = list(value_differences("report", then, now, "the store says", label="its report's ", step=at))
    copied = others.get(report_digest(report))
    if not found or copied in (None, link.name):
        yield from found
        return
    what = f"its report is that of step {copied} (copied or exchanged after training)"
    yield step.differ("report", what, then=then, now=now)


def _with_reward(record: Record, value: float) -> Record:
    """Return ``record`` with ``value`` as the effective final reward."""
    emitted = attach_rewards(record)[0].get(ROLLOUT)
    if emitted is None:
        return msgspec.structs.replace(record, rewards=[*record.rewards, Reward(value=value, returned=True)])
    counts = effective_reward(emitted)
    rewards = [msgspec.structs.replace(r, value=value) if r is counts else r for r in record.rewards]
    return msgspec.structs.replace(record, rewards=rewards)
