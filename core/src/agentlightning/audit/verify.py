"""Verify a run: make every row, advantage and weight again from the store, and compare with what was sealed.

``records of the sealed rollouts → credit → seals → compare``, step by step, each with the policy version that
the step was built for. Nothing is trusted but the seals and digests that were logged at training time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec

from agentlightning.audit.compare import Difference, blame_code, causes, differ, follow, outputs
from agentlightning.audit.run import CannotRecompute, Run
from agentlightning.credit.digest import in_order, rows_digest
from agentlightning.credit.policies import part
from agentlightning.credit.rewards import chosen, final_rewards
from agentlightning.credit.seals import seal, terms_digest
from agentlightning.types import Batch, Record, Reward, Seal, StepReport
from agentlightning.types.base import Model
from agentlightning.types.failure import read_table


class NothingSealed(CannotRecompute):
    """A run without steps, or without the step that was asked for."""


class Verification(Model):
    """What was verified of a run, and what was not equal."""

    run: str
    steps: int = 0
    rollouts: int = 0
    rows: int = 0
    tokens: int = 0
    """Trained tokens."""
    params: str = ""
    """What the parameters were compared with, or why they were not; empty if one step was asked for."""
    redone: list[int] = []
    """Steps that the run, gone on from a checkpoint before them, is making again: not compared."""
    equal: bool = True
    differences: list[Difference] = []
    """Root causes first, step by step."""

    def add(self, found: Sequence[Difference]) -> None:
        """Enter differences; what several policies of a step have in common, once."""
        self.differences += [one for one in found if one not in self.differences]
        self.equal = not self.differences


async def verify(
    run: Run, step: int | None = None, progress: Callable[[int, int], None] = lambda done, of: None
) -> Verification:
    """Compare the run, or one of its steps (counted from 0). ``progress``: steps done, of how many.

    Raises :class:`CannotRecompute` where there is nothing to compare with.
    """
    run.recipe  # noqa: B018 - raises before a long comparison begins
    reports = await run.store.query_steps(run.run_id)
    wanted = [report for report in reports if step is None or report.step == step]
    missing = await _gaps(run, reports) if step is None else []
    if not wanted and not missing:
        what = "no step yet" if step is None else f"no step {step}; it has {_span(reports)}"
        raise NothingSealed(f"run {run.run_id} has {what}")
    result = Verification(run=run.run_id)
    result.add(missing)
    before: int | None = None
    for done, report in enumerate(wanted):
        progress(done, len(wanted))
        await _step(run, report, result, first=report.step != before)
        before = report.step
    progress(len(wanted), len(wanted))
    if step is None:
        result.params, found = await asyncio.to_thread(_params, run, reports)
        result.add(found)
    return result


async def _step(run: Run, report: StepReport, result: Verification, first: bool) -> None:
    """One step of one policy into ``result``. ``first``: of the policies that share its rollouts."""
    number = report.step
    sealed = [s for s in await run.seals(number) if s.policy == report.policy]
    if await _redone(run, number, sealed):
        result.redone += [number] if first else []
        return
    result.steps += first
    if not sealed:
        what = "logged without seals (by an older version, or they were deleted): nothing to compare with"
        result.add([differ(number, None, "no-seals", None, 0, what)])
        return
    found = list(_count(report, sealed))
    records, lost = await _records(run, sealed)
    found += [*lost, *_terms(run, report)]
    version = sealed[0].version if report.version is None else report.version
    found += [
        differ(number, s.rollout_id, "version", version, s.version, _version(version, s))
        for s in sealed
        if s.version != version
    ]
    try:
        batch = _batch(run, report, sealed, records)
    except ValueError as error:  # a store that was tampered with may hold what credit refuses
        result.add([*found, differ(number, None, "uncreditable", None, None, f"credit refuses it: {error}")])
        return
    result.rollouts += len(records) if first else 0
    result.rows += len(batch.rows)
    result.tokens += sum(row.trained_tokens for row in batch.rows)
    result.add([*found, *_compare(run, report, sealed, records, batch, bool(found))])


def _compare(
    run: Run,
    report: StepReport,
    sealed: Sequence[Seal],
    records: Sequence[Record],
    batch: Batch,
    lacking: bool,
) -> list[Difference]:
    """Causes, then what follows from them. ``lacking``: something of the step could not be read at all."""
    remade = {s.rollout_id: s for s in _seal(batch, records, report, sealed)}
    pairs = [(then, remade[then.rollout_id]) for then in sealed if then.rollout_id in remade]
    roots = [difference for then, now in pairs for difference in causes(then, now)]
    changed = {then.rollout_id: names for then, now in pairs if (names := outputs(then, now))}
    if roots or lacking:
        blamed = list(dict.fromkeys(str(d.rollout_id) for d in roots))
        groups = {record.rollout.rollout_id: record.rollout.group_id for record in records}
        found = [*roots, follow(report.step, changed, groups, blamed)] if changed else roots
        return [*found, *(_explained(run, report, sealed, records, roots) if changed else ())]
    if changed:
        versions = run.versions()
        return [
            blame_code(then, changed[then.rollout_id], versions)
            for then, _ in pairs
            if then.rollout_id in changed
        ]
    if report.rows_digest is not None and report.rows_digest != (now := rows_digest(in_order(batch.rows))):
        what = (
            "its rows equal the seals, but not the digest in the step's report: report or seals were edited"
        )
        return [differ(report.step, None, "rows", report.rows_digest, now, what)]
    return []


def _explained(
    run: Run,
    report: StepReport,
    sealed: Sequence[Seal],
    records: Sequence[Record],
    roots: Sequence[Difference],
) -> list[Difference]:
    """With the old rewards put back, is everything as it was trained? Then nothing else has changed."""
    old = {str(d.rollout_id): d.then for d in roots}
    if not roots or any(d.kind != "reward" or d.then is None for d in roots):
        return []
    restored = [
        _with_reward(record, old[record.rollout.rollout_id]) if record.rollout.rollout_id in old else record
        for record in records
    ]
    batch = _batch(run, report, sealed, restored)
    remade = {s.rollout_id: s for s in _seal(batch, restored, report, sealed)}
    if any(outputs(then, remade[then.rollout_id]) for then in sealed if then.rollout_id in remade):
        what = "even with that put back, rows differ: something else has changed too"
        return [differ(report.step, None, "code", None, None, what)]
    what = "with that put back, every row, advantage and weight of the step equals what was trained"
    return [differ(report.step, None, "consequence", None, None, what)]


def _batch(run: Run, report: StepReport, sealed: Sequence[Seal], records: Sequence[Record]) -> Batch:
    """What the step was to its policy."""
    if run.trained:
        return part(run.credit(records, report.versions), report.policy)
    return run.credit(records, report.version if report.version is not None else sealed[0].version)


def _with_reward(record: Record, value: float) -> Record:
    """The record with the final reward that counts as it was; with one more if it has none left."""
    emitted = final_rewards(record)
    if not emitted:
        return msgspec.structs.replace(record, rewards=[*record.rewards, Reward(value=value)])
    counts = chosen(emitted)
    rewards = [msgspec.structs.replace(r, value=value) if r is counts else r for r in record.rewards]
    return msgspec.structs.replace(record, rewards=rewards)


def _seal(batch: Batch, records: Sequence[Record], report: StepReport, sealed: Sequence[Seal]) -> list[Seal]:
    version = sealed[0].version if report.version is None else report.version
    return seal(batch, records, run_id=report.run_id, step=report.step, policy=report.policy, version=version)


async def _records(run: Run, sealed: Sequence[Seal]) -> tuple[list[Record], list[Difference]]:
    """The records of the sealed rollouts, and what the store no longer has or cannot read."""
    known = await run.known([s.rollout_id for s in sealed])
    gone = [s for s in sealed if s.rollout_id not in known]
    here = [s for s in sealed if s.rollout_id in known]
    lost = [
        differ(
            s.step,
            s.rollout_id,
            "missing",
            s.attempt_id,
            None,
            "the store no longer has it (deleted after training)",
        )
        for s in gone
    ]
    if together := await _readable(run, [s.rollout_id for s in here]):
        return together, lost
    records: list[Record] = []
    for s in here:
        try:
            records += await run.store.records([s.rollout_id])
        except Exception as error:
            what = f"its record cannot be read ({type(error).__name__}: {error}): damaged after training"
            lost.append(differ(s.step, s.rollout_id, "unreadable", None, None, what))
    return records, lost


async def _readable(run: Run, rollout_ids: Sequence[str]) -> list[Record]:
    """All records at once; none if one of them is damaged, which is found when they are read one by one."""
    try:
        return await run.store.records(rollout_ids)
    except Exception:
        return []


def _count(report: StepReport, sealed: Sequence[Seal]) -> Iterator[Difference]:
    trained = report.metrics.get("rollouts")
    if trained is not None and int(trained) != len(sealed):
        what = f"its report counts {int(trained)} rollouts, {len(sealed)} seals are left"
        yield differ(report.step, None, "seals", int(trained), len(sealed), what)


def _terms(run: Run, report: StepReport) -> Iterator[Difference]:
    """Whether the run's record says what the step was credited by."""
    now = terms_digest(run.recipe, read_table(run.info.get("failure")))
    if report.terms_digest is not None and report.terms_digest != now:
        what = "recipe or failure table in the run's record are not those it was credited by"
        yield differ(report.step, None, "terms", report.terms_digest, now, f"{what} (edited after training)")


async def _redone(run: Run, step: int, sealed: Sequence[Seal]) -> bool:
    """Whether an unfinished run that went on from a checkpoint is rolling out this step again: its report and
    seals stand for nothing until it is reported anew.
    """
    lives = run.info.get("resumed") or []
    if run.info.get("summary") or not lives or step < lives[-1]["first_step"]:
        return False
    known = await run.known([s.rollout_id for s in sealed])
    if any(not rollout.status.final for rollout in known.values()):
        return True
    earlier = {e.attempt_id for record in await _readable(run, list(known)) for e in record.earlier}
    return any(s.attempt_id in earlier for s in sealed)


async def _gaps(run: Run, reports: Sequence[StepReport]) -> list[Difference]:
    """Steps without a report: between others, sealed, or of a run that says it was finished."""
    have = {report.step for report in reports}
    end = max(have, default=-1) + 1
    if await run.seals(end):
        end += 1
    planned = (run.info.get("summary") or {}).get("steps")
    if reports and isinstance(planned, int):
        end = max(end, planned)
    what = "its report is missing (deleted after training)"
    whole = [differ(step, None, "step", None, None, what) for step in range(end) if step not in have]
    return whole + [
        differ(
            step,
            None,
            "step",
            None,
            None,
            f"its report of policy {policy} is missing (deleted after training)",
        )
        for step in sorted(have)
        for policy in sorted(set(run.trained) - {report.policy for report in reports if report.step == step})
        if step + 1 < end or run.info.get("summary")  # the last one of a run that broke off may lack some
    ]


def _params(run: Run, reports: Sequence[StepReport]) -> tuple[str, list[Difference]]:
    """The newest policy folder, of each policy, against the digest that its step logged."""
    said: list[str] = []
    found: list[Difference] = []
    names: list[str | None] = [*run.trained] or [None]
    for name in names:
        mine = [report for report in reports if name is None or report.policy == name]
        text, differences = _params_of(run, mine, name)
        said += [text] if text not in said else []
        found += differences
    return "; ".join(said), found


def _params_of(run: Run, reports: Sequence[StepReport], name: str | None) -> tuple[str, list[Difference]]:
    logged = {report.step: report.params_digest for report in reports if report.params_digest}
    if not logged:
        return "parameters not compared: no step logged their digest (driver option deterministic)", []
    last = max((report.step for report in reports), default=-1)
    for folder, done in run.policies(name):
        step = last if done is None else done - 1
        if step not in logged:
            continue
        try:
            now = run.inspector(folder).digest()
        except CannotRecompute as error:
            return f"parameters not compared: {error}", []
        where = folder.relative_to(run.folder) if run.folder else folder
        if now == logged[step]:
            return f"the parameters in {where} are those after step {step}", []
        what = (
            f"the parameters in {where} are not those that the step left (edited or replaced after training)"
        )
        return f"{where} differs", [differ(step, None, "params", logged[step], now, what)]
    return "parameters not compared: the run's folder holds no policy of a step with a digest", []


def _version(version: int | None, s: Seal) -> str:
    return f"sealed for policy version {s.version}, the step's report says {version}"


def _span(reports: Sequence[StepReport]) -> str:
    return f"{reports[0].step} to {reports[-1].step}" if reports else "none"
