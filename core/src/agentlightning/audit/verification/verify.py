"""Verify a run: make everything again from the store that can be made, and compare with what was logged.

The chain says what was logged (:mod:`.chain`); step by step, ``records → credit → seals`` is made again
(:mod:`.steps`), so are the evaluations (:mod:`.evaluations`), and what the run says of itself is compared
with both (:mod:`.record`, :mod:`.folder`). Nothing is trusted but the links whose heads hold, and of a run
without them the seals and digests in its store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence

from agentlightning.audit.run import CannotRecompute, OpenRun
from agentlightning.audit.verification.chain import Chain, read_chain
from agentlightning.audit.verification.compare import Difference, make_difference
from agentlightning.audit.verification.evaluations import compare_evaluations, in_file_order
from agentlightning.audit.verification.folder import compare_checkpoints, compare_policy
from agentlightning.audit.verification.record import (
    compare_headline,
    compare_lines,
    compare_record,
    compare_summary,
)
from agentlightning.audit.verification.steps import (
    StepCheck,
    check_step,
    from_link,
    from_store,
    readable,
    report_digest,
)
from agentlightning.credit.fingerprints.chain import KEY_VARIABLE
from agentlightning.store.pages import pages
from agentlightning.types import RolloutFingerprint, RolloutStatus, StepReport
from agentlightning.types.base import Model


class NothingToVerify(CannotRecompute):
    """A run without steps and evaluations, or without the step that was asked for."""


class Verification(Model):
    """What was verified of a run, and what was not equal."""

    run: str
    steps: int = 0
    rollouts: int = 0
    rows: int = 0
    tokens: int = 0
    """Trained tokens."""
    evaluations: int = 0
    checkpoints: int = 0
    """Whose files were compared."""
    links: int = 0
    head: str = ""
    """Of the last link; empty for a run that was made before there were chains."""
    notes: list[str] = []
    """What was not compared, or not with all there could be, and why."""
    params: str = ""
    """What the parameters were compared with, or why they were not; empty if one step was asked for."""
    redone: list[int] = []
    """Steps that the run, gone on from a checkpoint before them, is making again: not compared."""
    equal: bool = True
    differences: list[Difference] = []
    """Root causes first, step by step."""

    def add(self, found: Sequence[Difference]) -> None:
        """Enter differences; what several policies of a step have in common, once."""
        for one in found:
            if one not in self.differences:
                self.differences.append(one)
        self.equal = not self.differences


Progress = Callable[[int, int], None]


async def verify(
    run: OpenRun,
    step: int | None = None,
    progress: Progress = lambda done, of: None,
    *,
    key: str | None = None,
    head: str | None = None,
) -> Verification:
    """Compare the run, or one of its steps (counted from 0). ``progress``: steps done, of how many. ``key``:
    what its chain was signed with (``AGL_SEAL_KEY``); ``head``: what it must end with.

    Raises :class:`CannotRecompute` where there is nothing to compare with.
    """
    key = key or os.environ.get(KEY_VARIABLE) or None
    chain = await read_chain(run, key, head)
    result = Verification(run=run.run_id, links=len(chain.links), head=chain.head)
    result.notes += _notes(run, chain, key)
    result.add(chain.found)
    if step is None:
        result.add(list(compare_record(run, chain)))
    if chain.start is not None:
        run.info = {**run.info, **chain.start.body["info"]}  # an edited record is named once, above
    reports = await run.store.query_steps(run.run_id)
    steps = await _steps(run, chain, reports, step, result, progress)
    if step is None:
        await _whole(run, chain, reports, steps, result)
    return result


async def _whole(
    run: OpenRun,
    chain: Chain,
    reports: Sequence[StepReport],
    steps: Sequence[StepCheck],
    result: Verification,
) -> None:
    """All that is not one step's: evaluations, summary, files, checkpoints, rollouts that nothing knows."""
    logged = sorted((one.report for one in steps), key=lambda report: report.step)
    made, found = await compare_evaluations(run, chain)
    result.evaluations = len(made)
    result.add(found)
    summary = list(compare_summary(run, chain))
    result.add(summary)
    if result.equal:
        result.add(list(compare_headline(run, chain, made, logged)))
    result.add(list(compare_lines(run, logged, in_file_order(chain, made))))
    result.checkpoints, found = await asyncio.to_thread(compare_checkpoints, run, chain)
    result.add(found)
    result.add(await asyncio.to_thread(compare_policy, run, chain))
    result.add(await _unknown_rollouts(run, chain, steps))
    result.params, found = await asyncio.to_thread(_params, run, logged)
    result.add(found)


async def _steps(
    run: OpenRun,
    chain: Chain,
    reports: Sequence[StepReport],
    only: int | None,
    result: Verification,
    progress: Progress,
) -> list[StepCheck]:
    """Every step that was logged, made again; and steps that nothing logged."""
    stored: dict[tuple[int, str], StepReport] = {}
    for found in _misplaced(reports, stored):
        result.add([found])
    wanted = sorted({*chain.steps, *stored})
    if only is not None:
        wanted = [at for at in wanted if at[0] == only]
    missing = await _missing_steps(run, list(stored.values()), chain) if only is None else []
    if not wanted and not missing and not (only is None and chain.evaluations):
        have = f"{reports[0].step} to {reports[-1].step}" if reports else "none"
        what = "no step yet" if only is None else f"no step {only}; it has {have}"
        raise NothingToVerify(f"run {run.run_id} has {what}")
    if wanted:
        run.recipe  # noqa: B018 - raises before a long comparison begins
    result.add(missing)
    others = {report_digest(link.body["report"]): link.name for link in chain.steps.values()}
    done: list[StepCheck] = []
    before: int | None = None
    for count, at in enumerate(wanted):
        progress(count, len(wanted))
        one = await _step(run, chain, at, stored.get(at), others, result, first=at[0] != before)
        if one is not None:
            done.append(one)
        before = at[0]
    progress(len(wanted), len(wanted))
    return done


async def _step(
    run: OpenRun,
    chain: Chain,
    at: tuple[int, str],
    report: StepReport | None,
    others: dict[str, str],
    result: Verification,
    first: bool,
) -> StepCheck | None:
    """One step of one policy into ``result``. ``first``: of the policies that share its rollouts."""
    number, policy = at
    link = chain.steps.get(at)
    sealed = [s for s in await run.seals(number) if s.policy == policy]
    redone = link is None and (number in chain.waiting or await _is_redone(run, number, sealed))
    if redone and not run.info.get("summary"):
        result.redone += [number] if first else []
        return None
    tampered = ("step", f"{number}/{policy}") in chain.tampered
    if link is None and chain.links and number >= chain.first_step and not tampered:
        copied = others.get(report_digest(report))
        how = f"a copy of step {copied}, made" if copied else "added"
        what = f"the store has a report of it, and the chain has no link ({how} after training)"
        result.add([make_difference(number, None, "step", None, None, what)])
        return None
    if link is None:
        assert report is not None
        one = from_store(report, sealed)
    else:
        one = from_link(link, report, sealed, others)
    result.steps += first
    result.add(await check_step(run, one, sealed))
    if one.batch is not None:
        result.rollouts += len(one.rollouts) if first else 0
        result.rows += len(one.batch.rows)
        result.tokens += sum(row.trained_tokens for row in one.batch.rows)
    return one


def _misplaced(
    reports: Sequence[StepReport], stored: dict[tuple[int, str], StepReport]
) -> Iterator[Difference]:
    """Reports that are there twice or out of their order; all others go into ``stored``."""
    last = -1
    for report in reports:
        at = (report.step, report.policy)
        if at in stored:
            what = "the store has two reports of it: one was copied over, or to the place of, another step"
            yield make_difference(report.step, None, "step", None, None, f"{what} (after training)")
            continue
        if report.step < last:
            what = f"its report stands behind that of step {last} (moved or exchanged after training)"
            yield make_difference(report.step, None, "step", None, None, what)
        last = max(last, report.step)
        stored[at] = report


async def _unknown_rollouts(run: OpenRun, chain: Chain, steps: Sequence[StepCheck]) -> list[Difference]:
    """Rollouts of a finished run that no step trained and no evaluation counted. Those that were cancelled
    were under way when it ended.
    """
    if not run.info.get("summary") or not chain.links or chain.first_step or chain.tampered:
        return []
    known = {rollout for step in steps for rollout in step.rollouts}
    known |= {seal.rollout_id for link in chain.links for seal in link.seals}
    found: list[Difference] = []
    async for page in pages(run.store.query_rollouts, run_id=run.run_id):
        for rollout in page:
            if rollout.rollout_id not in known and rollout.status != RolloutStatus.CANCELLED:
                which = f"{rollout.mode}, {rollout.status}"
                what = f"no step and no evaluation knows it ({which}): added after training"
                found.append(
                    make_difference(None, rollout.rollout_id, "added", None, str(rollout.status), what)
                )
    return found


def _notes(run: OpenRun, chain: Chain, key: str | None) -> list[str]:
    """What cannot be told of this run, or was not asked."""
    if not chain.links:
        return [
            "this run has no chain (it was trained by an older version): steps are compared with their "
            "seals; that a step, an evaluation, a summary or a checkpoint was replaced whole cannot be told"
        ]
    notes: list[str] = []
    if chain.first_step:
        notes.append(
            f"steps before {chain.first_step} were trained by an older version: the chain begins there"
        )
    if run.folder is None:
        notes.append(
            "files, checkpoints and the exported policy not compared: this store lies in no run's folder"
        )
    if key is None and any(link.mac for link in chain.links):
        notes.append(f"its chain is signed; {KEY_VARIABLE} is not set here, so the signature was not checked")
    return notes


async def _is_redone(run: OpenRun, step: int, sealed: Sequence[RolloutFingerprint]) -> bool:
    """Whether an unfinished run that went on from a checkpoint is rolling out this step again: its report and
    seals stand for nothing until it is reported anew.
    """
    lives = run.info.get("resumed") or []
    if run.info.get("summary") or not lives or step < lives[-1]["first_step"]:
        return False
    known = await run.known([s.rollout_id for s in sealed])
    if any(not rollout.status.final for rollout in known.values()):
        return True
    earlier = {e.attempt_id for record in await readable(run, list(known)) for e in record.earlier}
    return any(s.attempt_id in earlier for s in sealed)


async def _missing_steps(run: OpenRun, reports: Sequence[StepReport], chain: Chain) -> list[Difference]:
    """Steps without a report: between others, sealed, or of a run that says it was finished."""
    have = {report.step for report in reports} | {step for step, _ in chain.steps} | chain.waiting
    end = max(have, default=-1) + 1
    if await run.seals(end):
        end += 1
    planned = (run.info.get("summary") or {}).get("steps")
    if reports and isinstance(planned, int):
        end = max(end, planned)
    what = "its report is missing (deleted after training)"
    whole = [make_difference(step, None, "step", None, None, what) for step in range(end) if step not in have]
    reported = {(report.step, report.policy) for report in reports} | set(chain.steps)
    lacking = [
        (step, policy)
        for step in sorted(have)
        for policy in sorted(run.trained)
        if (step, policy) not in reported
        if step + 1 < end or run.info.get("summary")  # the last one of a run that broke off may lack some
    ]
    what = "its report of policy {} is missing (deleted after training)"
    return whole + [
        make_difference(step, None, "step", None, None, what.format(policy)) for step, policy in lacking
    ]


def _params(run: OpenRun, reports: Sequence[StepReport]) -> tuple[str, list[Difference]]:
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


def _params_of(run: OpenRun, reports: Sequence[StepReport], name: str | None) -> tuple[str, list[Difference]]:
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
        return f"{where} differs", [make_difference(step, None, "params", logged[step], now, what)]
    return "parameters not compared: the run's folder holds no policy of a step with a digest", []
