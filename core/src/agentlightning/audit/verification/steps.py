"""Make one step again from the store and compare it with what was logged when it was trained.

The step's link in the chain holds its report and the digests of its fingerprints. Where a run has no chain
(an older version trained it), the report and the fingerprints in the store are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentlightning.audit.run import OpenRun
from agentlightning.audit.verification.compare import (
    Difference,
    changed_outputs,
    code_difference,
    consequences,
    input_differences,
    make_difference,
)
from agentlightning.audit.verification.reading import read_records
from agentlightning.audit.verification.values import close, differences, same, shorten
from agentlightning.credit.fingerprints.call_digests import LAYOUT
from agentlightning.credit.fingerprints.chain import digest, plain
from agentlightning.credit.fingerprints.digest import canonical_order, rows_digest
from agentlightning.credit.fingerprints.fingerprint import fingerprint_rollouts, terms_digest
from agentlightning.credit.policy_batch import policy_batch
from agentlightning.credit.scoring.rewards import ROLLOUT, attach_rewards
from agentlightning.types import AuditLink, Batch, Record, Reward, RolloutFingerprint, StepReport
from agentlightning.types.aliases import StepMetrics
from agentlightning.types.failure import read_failure_table
from agentlightning.types.rewards import effective_reward

UNKNOWN = "differs"
"""Stands for the digest of a rollout that was changed, where its own fingerprint is lost."""
Fingerprints = Mapping[str, RolloutFingerprint]
"""Rollout id → its fingerprint."""


@dataclass(slots=True)
class StepCheck:
    """One step of one policy: what was logged of it, and what the store gives now."""

    run: OpenRun
    report: StepReport
    """As it was logged: its link's, else the store's."""
    stored: Fingerprints
    """All that the store has of the step."""
    rollouts: list[str]
    """Those that it trained, in order."""
    logged: dict[str, RolloutFingerprint] = field(default_factory=dict)
    """Fingerprints that are as they were logged."""
    digests: dict[str, str] = field(default_factory=dict)
    """Rollout → the digest of its fingerprint, where a link says."""
    found: list[Difference] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    batch: Batch | None = None
    """Its rows, made again."""

    @property
    def version(self) -> int | None:
        """Policy version that its rows were built for."""
        first = next(iter(self.logged.values()), None)
        return self.report.version if self.report.version is not None or first is None else first.version

    def differ(self, kind: str, what: str, rollout: str | None = None, **values: Any) -> Difference:
        """A difference in this step."""
        return make_difference(kind, what, step=self.report.step, rollout=rollout, **values)

    async def check(self) -> list[Difference]:
        """Make the step again and name what differs, causes first."""
        if not self.rollouts:
            return self.found
        self.records, lost = await read_records(self.run, self.rollouts, self.report.step)
        found = [*self.found, *lost, *self._terms()]
        try:
            self.batch = self._credit(self.records)
        except ValueError as error:  # a store that was tampered with may hold what credit refuses
            return [*found, self.differ("uncreditable", f"credit refuses it: {error}")]
        remade = self._fingerprints(self.batch, self.records)
        edited = list(self._edited(remade))
        causes = [d for then, now in self._pairs(remade) for d in input_differences(then, now)]
        doubt = [d for d in edited if d.now == UNKNOWN]
        if doubt and not causes:
            found += doubt
        unread = any(d.kind != "report" for d in found)
        return [*found, *(d for d in edited if d not in doubt), *self._compare(remade, causes, unread)]

    def _terms(self) -> Iterator[Difference]:
        """Whether the run's record has the recipe and failure table that the step was credited by."""
        then = self.report.terms_digest
        now = terms_digest(self.run.recipe, read_failure_table(self.run.info.get("failure")))
        if then is not None and then != now:
            what = "recipe or failure table in the run's record are not those it was credited by"
            yield self.differ("terms", f"{what} (edited after training)", then=then, now=now)

    def _credit(self, records: Sequence[Record]) -> Batch:
        """The step's rows of its policy."""
        if self.run.trained:
            return policy_batch(self.run.credit(records, self.report.versions), self.report.policy)
        return self.run.credit(records, self.version)

    def _fingerprints(self, batch: Batch, records: Sequence[Record]) -> Fingerprints:
        report = self.report
        then = next(iter((self.logged or self.stored).values()), None)
        layout = LAYOUT if then is None else then.layout
        made = fingerprint_rollouts(
            batch,
            records,
            run_id=report.run_id,
            step=report.step,
            policy=report.policy,
            version=self.version,
            layout=layout,
        )
        return {one.rollout_id: one for one in made}

    def _pairs(self, remade: Fingerprints) -> list[tuple[RolloutFingerprint, RolloutFingerprint]]:
        """Each rollout's fingerprint as it was logged, and as it is made now."""
        return [(self.logged[r], remade[r]) for r in self.rollouts if r in self.logged and r in remade]

    def _edited(self, remade: Fingerprints) -> Iterator[Difference]:
        """Stored fingerprints that are not those that were logged. Where the store's rollout gives the logged
        one, the rest is compared with that.
        """
        if self.digests and not self.stored:
            what = f"all of its {len(self.digests)} fingerprints are missing (deleted after training)"
            yield self.differ("seals", what, then=len(self.digests), now=0)
        for rollout, then in self.digests.items():
            if rollout in self.logged:
                continue
            now, again = self.stored.get(rollout), remade.get(rollout)
            intact = again is not None and digest(again) == then
            if again is not None and intact:
                self.logged[rollout] = again
            if now is None and self.stored:
                yield self.differ(
                    "seal", "its fingerprint is missing (deleted after training)", rollout, then=then
                )
            elif now is not None:
                names = [path for path, _, _ in differences(plain(again), plain(now))] if intact else []
                where = f" ({', '.join(names[:4])})" if names else ""
                what = f"its fingerprint was edited after training{where}"
                yield self.differ("seal", what, rollout, then=then, now=digest(now))
            if again is not None and not intact:
                what = "it is not what was trained; without its fingerprint it cannot be said what differs"
                yield self.differ("seal", what, rollout, then=then, now=UNKNOWN)

    def _compare(self, remade: Fingerprints, causes: list[Difference], unread: bool) -> list[Difference]:
        """Causes, then what follows from them. ``unread``: a part of the step could not be read."""
        assert self.batch is not None
        changed = {
            t.rollout_id: names for t, now in self._pairs(remade) if (names := changed_outputs(t, now))
        }
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
        then, now = self.report.rows_digest, rows_digest(canonical_order(self.batch.rows))
        if then is not None and then != now:
            what = "its rows equal the fingerprints, and not the digest in its report: one of them was edited"
            return [self.differ("rows", what, then=then, now=now)]
        return list(self._metrics(self.batch))

    def _metrics(self, batch: Batch) -> Iterator[Difference]:
        """Metrics of credit that are not those of the report, where nothing else of the step differs."""
        cause = "the code that makes it has changed, or the chain was made anew" if self.digests else "edited"
        logged = StepMetrics(self.report.metrics)
        for name, now in batch.metrics.items():
            then = logged.get(name)
            if then is not None and not same(then, now) and not close(then, now):
                what = (
                    f"its report says {name} {shorten(then)}, its rollouts in the store give {shorten(now)}"
                )
                yield self.differ("report", f"{what} ({cause})", then=then, now=now)

    def _explained(self, causes: Sequence[Difference]) -> list[Difference]:
        """Put the logged rewards back: if everything is as it was trained, nothing else has changed."""
        old = {str(d.rollout_id): d.then for d in causes}
        if not causes or any(d.kind != "reward" or d.then is None for d in causes):
            return []
        restored = [
            _with_reward(record, old[name]) if (name := record.rollout.rollout_id) in old else record
            for record in self.records
        ]
        remade = self._fingerprints(self._credit(restored), restored)
        if any(changed_outputs(then, now) for then, now in self._pairs(remade)):
            return [
                self.differ("code", "even with that put back, rows differ: something else has changed too")
            ]
        what = "with that put back, every row, advantage and weight of the step equals what was trained"
        return [self.differ("consequence", what)]


def from_store(run: OpenRun, report: StepReport, stored: Sequence[RolloutFingerprint]) -> StepCheck:
    """A step without a link: report and fingerprints vouch for themselves."""
    known = {one.rollout_id: one for one in stored}
    step = StepCheck(run, report, known, [*known], logged={**known})
    if not stored:
        what = "logged without fingerprints (by an older version, or they were deleted): nothing to compare"
        step.found.append(step.differ("no-seals", what, now=0))
        return step
    trained = report.metrics.get("rollouts")
    if trained is not None and int(trained) != len(stored):
        what = f"its report counts {int(trained)} rollouts, {len(stored)} fingerprints are left"
        step.found.append(step.differ("seals", what, then=int(trained), now=len(stored)))
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
    """A step as its link has it, and where the store differs. ``others``: :func:`report_digest` of every
    step's report → the step.
    """
    then = {str(rollout): str(value) for rollout, value in link.body["seals"]}
    logged = msgspec.convert(link.body["report"], StepReport)
    step = StepCheck(run, logged, {one.rollout_id: one for one in stored}, [*then], digests=then)
    step.found += _reported(step, link, report, others)
    for one in stored:
        if one.rollout_id not in then:
            what = "the store has a fingerprint of it, which the step did not log (added after training)"
            step.found.append(step.differ("seal", what, one.rollout_id, now=digest(one)))
        elif digest(one) == then[one.rollout_id]:
            step.logged[one.rollout_id] = one
    return step


def report_digest(report: Any) -> str:
    """A digest of a report but for the number of its step: equal for copies."""
    return digest({k: v for k, v in plain(report).items() if k != "step"})


def _reported(
    step: StepCheck, link: AuditLink, report: StepReport | None, others: Mapping[str, str]
) -> Iterator[Difference]:
    """Where the store's report is not the link's."""
    if report is None:
        yield step.differ("step", "its report is missing (deleted after training)")
        return
    found = list(differences(link.body["report"], plain(report)))
    copied = others.get(report_digest(report))
    if found and copied is not None and copied != link.name:
        what = f"its report is that of step {copied} (copied or exchanged after training)"
        yield step.differ("report", what, then=link.body["report"], now=plain(report))
        return
    for path, was, now in found:
        what = f"its report said {path} {shorten(was)} when it was logged, the store says {shorten(now)}"
        yield step.differ("report", f"{what} (edited after training)", then=was, now=now)


def _with_reward(record: Record, value: float) -> Record:
    """``record`` with ``value`` as the final reward that counts."""
    emitted = attach_rewards(record)[0].get(ROLLOUT)
    if emitted is None:
        return msgspec.structs.replace(record, rewards=[*record.rewards, Reward(value=value)])
    counts = effective_reward(emitted)
    rewards = [msgspec.structs.replace(r, value=value) if r is counts else r for r in record.rewards]
    return msgspec.structs.replace(record, rewards=rewards)
