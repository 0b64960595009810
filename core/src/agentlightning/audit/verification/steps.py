"""One step, made again from the store and compared with what was sealed when it was trained.

The step's link in the chain says what its report and its seals were; where a run has none (it was trained by
an older version), the report and the seals in the store are taken as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agentlightning.audit.run import OpenRun
from agentlightning.audit.verification.compare import (
    Difference,
    blame_code,
    changed_outputs,
    consequences,
    input_differences,
    make_difference,
)
from agentlightning.audit.verification.values import close, differences, same, shorten
from agentlightning.credit.fingerprints.chain import digest, plain
from agentlightning.credit.fingerprints.digest import canonical_order, rows_digest
from agentlightning.credit.fingerprints.fingerprint import fingerprint_rollouts, terms_digest
from agentlightning.credit.policy_batch import policy_batch
from agentlightning.credit.scoring.rewards import effective_reward, final_rewards
from agentlightning.types import AuditLink, Batch, Record, Reward, RolloutFingerprint, StepReport
from agentlightning.types.aliases import StepMetrics
from agentlightning.types.failure import read_failure_table


@dataclass(slots=True)
class StepCheck:
    """What is known of one step of one policy."""

    report: StepReport
    """As it was logged: its link's, else the store's."""
    rollouts: list[str]
    """What it trained, in order."""
    seals: dict[str, RolloutFingerprint] = field(default_factory=dict)
    """Those that are what they were."""
    digests: dict[str, str] = field(default_factory=dict)
    """Rollout → its seal's digest, where a link says."""
    found: list[Difference] = field(default_factory=list)
    batch: Batch | None = None
    """Its rows, made again."""

    @property
    def version(self) -> int | None:
        """Policy version that its rows were built for."""
        first = next(iter(self.seals.values()), None)
        return self.report.version if self.report.version is not None or first is None else first.version


def from_store(report: StepReport, sealed: Sequence[RolloutFingerprint]) -> StepCheck:
    """A step without a link: nothing says what report and seals were, but themselves."""
    step = StepCheck(report, [s.rollout_id for s in sealed], {s.rollout_id: s for s in sealed})
    if not sealed:
        what = "logged without seals (by an older version, or they were deleted): nothing to compare with"
        step.found.append(make_difference(report.step, None, "no-seals", None, 0, what))
        return step
    trained = report.metrics.get("rollouts")
    if trained is not None and int(trained) != len(sealed):
        what = f"its report counts {int(trained)} rollouts, {len(sealed)} seals are left"
        step.found.append(make_difference(report.step, None, "seals", int(trained), len(sealed), what))
    for s in sealed:
        if s.version != step.version:
            what = f"sealed for policy version {s.version}, the step's report says {step.version}"
            step.found.append(
                make_difference(report.step, s.rollout_id, "version", step.version, s.version, what)
            )
    return step


def from_link(
    link: AuditLink,
    stored: StepReport | None,
    sealed: Sequence[RolloutFingerprint],
    others: Mapping[str, str],
) -> StepCheck:
    """A step as its link has it, and where the store says otherwise. ``others``: :func:`report_digest`
    of every step's report → the step.
    """
    report = msgspec.convert(link.body["report"], StepReport)
    then = {str(rollout): str(value) for rollout, value in link.body["seals"]}
    step = StepCheck(report, list(then), digests=then)
    step.found += _reported(link, report, stored, others)
    for s in sealed:
        if s.rollout_id not in then:
            what = (
                "a seal of it is in the store, and none was when the step was logged (added after training)"
            )
            step.found.append(make_difference(report.step, s.rollout_id, "seal", None, digest(s), what))
        elif digest(s) == then[s.rollout_id]:
            step.seals[s.rollout_id] = s
    return step


def report_digest(report: Any) -> str:
    """A digest of a report but for the number of its step: equal for copies."""
    return digest({k: v for k, v in plain(report).items() if k != "step"})


def _reported(
    link: AuditLink, report: StepReport, stored: StepReport | None, others: Mapping[str, str]
) -> Iterator[Difference]:
    if stored is None:
        yield make_difference(
            report.step, None, "step", None, None, "its report is missing (deleted after training)"
        )
        return
    found = list(differences(link.body["report"], plain(stored)))
    copied = others.get(report_digest(stored))
    if found and copied is not None and copied != link.name:
        what = f"its report is that of step {copied} (copied or exchanged after training)"
        yield make_difference(report.step, None, "report", link.body["report"], plain(stored), what)
        return
    for path, was, now in found:
        what = f"its report said {path} {shorten(was)} when it was logged, the store says {shorten(now)}"
        yield make_difference(report.step, None, "report", was, now, f"{what} (edited after training)")


async def check_step(run: OpenRun, step: StepCheck, sealed: Sequence[RolloutFingerprint]) -> list[Difference]:
    """Make the step again and name what differs, causes first. ``sealed``: all its seals in the store."""
    if not step.rollouts:
        return step.found
    records, lost = await _records(run, step)
    found = [*step.found, *lost, *_terms(run, step.report)]
    try:
        step.batch = _batch(run, step, records)
    except ValueError as error:  # a store that was tampered with may hold what credit refuses
        return [
            *found,
            make_difference(
                step.report.step, None, "uncreditable", None, None, f"credit refuses it: {error}"
            ),
        ]
    remade = _fingerprints(step, step.batch, records)
    stored = {s.rollout_id: s for s in sealed}
    edited = list(_edited(step, stored, remade))
    root_causes = _input_differences(step, remade)
    doubt = [d for d in edited if d.kind == "seal" and d.now == "differs"]
    if doubt and not root_causes:
        found += doubt
    lacking = bool(found) and any(d.kind != "report" for d in found)
    return [
        *found,
        *(d for d in edited if d not in doubt),
        *_compare(run, step, records, remade, root_causes, lacking),
    ]


def _edited(
    step: StepCheck, stored: Mapping[str, RolloutFingerprint], remade: Mapping[str, RolloutFingerprint]
) -> Iterator[Difference]:
    """Seals that are not what they were. Where the store's rollout gives the seal that was logged, that is
    the seal which the rest is compared with.
    """
    number = step.report.step
    if step.digests and not stored:
        what = f"all of its {len(step.digests)} seals are missing (deleted after training)"
        yield make_difference(number, None, "seals", len(step.digests), 0, what)
    for rollout_id, then in step.digests.items():
        if rollout_id in step.seals:
            continue
        now, again = stored.get(rollout_id), remade.get(rollout_id)
        intact = again is not None and digest(again) == then
        if again is not None and intact:
            step.seals[rollout_id] = again
        if now is None and stored:
            what = "its seal is missing (deleted after training)"
            yield make_difference(number, rollout_id, "seal", then, None, what)
        elif now is not None:
            names = [path for path, _, _ in differences(plain(again), plain(now))] if intact else []
            what = f" ({', '.join(names[:4])})" if names else ""
            yield make_difference(
                number, rollout_id, "seal", then, digest(now), f"its seal was edited after training{what}"
            )
        if again is not None and not intact:
            what = "without its seal it cannot be said what of it, but it is not what was sealed either"
            yield make_difference(number, rollout_id, "seal", then, "differs", what)


def _input_differences(step: StepCheck, remade: Mapping[str, RolloutFingerprint]) -> list[Difference]:
    pairs = [(then, remade[rollout]) for rollout, then in _ordered(step) if rollout in remade]
    return [difference for then, now in pairs for difference in input_differences(then, now)]


def _ordered(step: StepCheck) -> list[tuple[str, RolloutFingerprint]]:
    return [(rollout, step.seals[rollout]) for rollout in step.rollouts if rollout in step.seals]


def _compare(
    run: OpenRun,
    step: StepCheck,
    records: Sequence[Record],
    remade: Mapping[str, RolloutFingerprint],
    root_causes: list[Difference],
    lacking: bool,
) -> list[Difference]:
    """Causes, then what follows from them. ``lacking``: something of the step could not be read at all."""
    assert step.batch is not None
    number, report = step.report.step, step.report
    pairs = [(then, remade[rollout]) for rollout, then in _ordered(step) if rollout in remade]
    changed = {then.rollout_id: names for then, now in pairs if (names := changed_outputs(then, now))}
    if root_causes or lacking:
        blamed = list(dict.fromkeys(str(d.rollout_id) for d in root_causes))
        groups = {record.rollout.rollout_id: record.rollout.group_id for record in records}
        found = [*root_causes, consequences(number, changed, groups, blamed)] if changed else root_causes
        return [*found, *(_explained(run, step, records, root_causes) if changed else ())]
    if changed:
        versions = run.versions()
        return [
            blame_code(then, changed[then.rollout_id], versions)
            for then, _ in pairs
            if then.rollout_id in changed
        ]
    if report.rows_digest is not None and report.rows_digest != (
        now := rows_digest(canonical_order(step.batch.rows))
    ):
        what = (
            "its rows equal the seals, but not the digest in the step's report: report or seals were edited"
        )
        return [make_difference(number, None, "rows", report.rows_digest, now, what)]
    return list(_metrics(step, step.batch))


def _metrics(step: StepCheck, batch: Batch) -> Iterator[Difference]:
    """StepMetrics of credit, made again. Nothing else of the step differs."""
    cause = "the code that makes it has changed, or the chain was made anew" if step.digests else "edited"
    logged = StepMetrics(step.report.metrics)
    for name, now in batch.metrics.items():
        then = logged.get(name)
        if then is not None and not same(then, now) and not close(then, now):
            what = f"its report says {name} {shorten(then)}, its rollouts in the store give {shorten(now)}"
            yield make_difference(step.report.step, None, "report", then, now, f"{what} ({cause})")


def _explained(
    run: OpenRun, step: StepCheck, records: Sequence[Record], root_causes: Sequence[Difference]
) -> list[Difference]:
    """With the old rewards put back, is everything as it was trained? Then nothing else has changed."""
    old = {str(d.rollout_id): d.then for d in root_causes}
    if not root_causes or any(d.kind != "reward" or d.then is None for d in root_causes):
        return []
    restored = [
        _with_reward(record, old[record.rollout.rollout_id]) if record.rollout.rollout_id in old else record
        for record in records
    ]
    remade = _fingerprints(step, _batch(run, step, restored), restored)
    number = step.report.step
    if any(changed_outputs(then, remade[rollout]) for rollout, then in _ordered(step) if rollout in remade):
        what = "even with that put back, rows differ: something else has changed too"
        return [make_difference(number, None, "code", None, None, what)]
    what = "with that put back, every row, advantage and weight of the step equals what was trained"
    return [make_difference(number, None, "consequence", None, None, what)]


def _batch(run: OpenRun, step: StepCheck, records: Sequence[Record]) -> Batch:
    """What the step was to its policy."""
    if run.trained:
        return policy_batch(run.credit(records, step.report.versions), step.report.policy)
    return run.credit(records, step.version)


def _fingerprints(step: StepCheck, batch: Batch, records: Sequence[Record]) -> dict[str, RolloutFingerprint]:
    report = step.report
    made = fingerprint_rollouts(
        batch, records, run_id=report.run_id, step=report.step, policy=report.policy, version=step.version
    )
    return {s.rollout_id: s for s in made}


def _with_reward(record: Record, value: float) -> Record:
    """The record with the final reward that counts as it was; with one more if it has none left."""
    emitted = final_rewards(record)
    if not emitted:
        return msgspec.structs.replace(record, rewards=[*record.rewards, Reward(value=value)])
    counts = effective_reward(emitted)
    rewards = [msgspec.structs.replace(r, value=value) if r is counts else r for r in record.rewards]
    return msgspec.structs.replace(record, rewards=rewards)


async def _records(run: OpenRun, step: StepCheck) -> tuple[list[Record], list[Difference]]:
    """The records of the step's rollouts, and what the store no longer has or cannot read."""
    return await read_records(run, step.rollouts, step.report.step)


async def read_records(
    run: OpenRun, rollouts: Sequence[str], number: int | None, of: str | None = None
) -> tuple[list[Record], list[Difference]]:
    """The records of sealed rollouts, and what the store no longer has or cannot read."""
    known = await run.known(rollouts)
    what = "the store no longer has it (deleted after training)"
    lost = [
        make_difference(number, r, "missing", None, None, what, of=of) for r in rollouts if r not in known
    ]
    here = [rollout for rollout in rollouts if rollout in known]
    if together := await readable(run, here):
        return together, lost
    records: list[Record] = []
    for rollout in here:
        try:
            records += await run.store.records([rollout])
        except Exception as error:
            what = f"its record cannot be read ({type(error).__name__}: {error}): damaged after training"
            lost.append(make_difference(number, rollout, "unreadable", None, None, what, of=of))
    return records, lost


async def readable(run: OpenRun, rollout_ids: Sequence[str]) -> list[Record]:
    """All records at once; none if one of them is damaged, which is found when they are read one by one."""
    try:
        return await run.store.records(rollout_ids)
    except Exception:
        return []


def _terms(run: OpenRun, report: StepReport) -> Iterator[Difference]:
    """Whether the run's record says what the step was credited by."""
    now = terms_digest(run.recipe, read_failure_table(run.info.get("failure")))
    if report.terms_digest is not None and report.terms_digest != now:
        what = "recipe or failure table in the run's record are not those it was credited by"
        yield make_difference(
            report.step, None, "terms", report.terms_digest, now, f"{what} (edited after training)"
        )
