"""Verify a run: recompute its steps and evaluations from the store, and compare them with the logged ones.

The chain holds the logged values (:mod:`.chain`). Steps are recomputed as ``records → credit → fingerprints``
(:mod:`.steps`), evaluations from their rollouts (:mod:`.evaluations`), and the run's record and files are
compared with both (:mod:`.record`, :mod:`.folder`). Only links that match their heads are trusted; for a run
without a chain, the fingerprints and digests in its store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentlightning.credit.digest import KEY_VARIABLE
from agentlightning.store.pages import pages
from agentlightning.types import RolloutFingerprint, RolloutStatus, StepReport
from agentlightning.types.base import Model
from agl_audit.run import CannotRecompute, OpenRun
from agl_audit.verification.chain import Chain, read_chain
from agl_audit.verification.differences import Difference, make_difference, readable
from agl_audit.verification.evaluations import compare_evaluations, compare_searches, in_file_order
from agl_audit.verification.folder import compare_checkpoints, compare_parameters, compare_policy
from agl_audit.verification.record import (
    compare_headline,
    compare_lines,
    compare_record,
    compare_summary,
)
from agl_audit.verification.steps import StepCheck, from_link, from_store, report_digest


class NothingToVerify(CannotRecompute):
    """A run without steps and evaluations, or without the step that was asked for."""


class Verification(Model):
    """The result of verifying a run."""

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
    """Parts that were not compared, or only in part, and why."""
    params: str = ""
    """Result of comparing the parameters, or why they were not compared; empty for a single step."""
    redone: list[int] = []
    """Steps that a resumed run is repeating: not compared."""
    equal: bool = True
    differences: list[Difference] = []
    """Root causes first, step by step."""

    def add(self, found: Iterable[Difference]) -> None:
        """Enter differences; a difference that the policies of a step share is entered once."""
        for one in found:
            if one not in self.differences:
                self.differences.append(one)
        self.equal = not self.differences


Progress = Callable[[int, int], None]
At = tuple[int, str]
"""A step's number and policy."""


async def verify(
    run: OpenRun,
    step: int | None = None,
    progress: Progress = lambda done, of: None,
    *,
    key: str | None = None,
    head: str | None = None,
) -> Verification:
    """Verify the run, or one of its steps (counted from 0). ``progress``: steps done, of how many. ``key``:
    the key that signed its chain (default ``AGL_SIGNING_KEY``); ``head``: the expected head of its last link.

    Raise :class:`CannotRecompute` if there is nothing to compare with.
    """
    key = key or os.environ.get(KEY_VARIABLE)
    chain = await read_chain(run, key, head)
    run.keep_edits(chain.links)
    result = Verification(
        run=run.run_id, links=len(chain.links), head=chain.head, notes=_notes(run, chain, key)
    )
    result.add(chain.found)
    if step is None:
        result.add(compare_record(run, chain))
    if chain.start is not None:
        run.info = {**run.info, **chain.start.body["info"]}  # an edited record is named once, above
    verifier = _Verifier(run, chain, result, await run.store.query_steps(run.run_id))
    await verifier.steps(step, progress)
    if step is None:
        await verifier.everything_else()
    return result


class _Verifier:
    """Compares a run part by part, into ``result``."""

    def __init__(
        self, run: OpenRun, chain: Chain, result: Verification, reports: Sequence[StepReport]
    ) -> None:
        self.run, self.chain, self.result, self.reports = run, chain, result, reports
        self.finished = bool(run.info.get("summary"))
        self.checked: list[StepCheck] = []

    def add(self, what: str, step: int) -> None:
        """Enter a difference of kind ``step``."""
        self.result.add([make_difference("step", what, step=step)])

    async def steps(self, only: int | None, progress: Progress) -> None:
        """Recompute every logged step, and name the steps that are missing or were added."""
        stored = self._stored_reports()
        wanted = sorted(at for at in {*self.chain.steps, *stored} if only in (None, at[0]))
        missing = await self._missing_steps(list(stored.values())) if only is None else []
        if not wanted and not missing and not (only is None and self.chain.evaluations):
            have = f"{self.reports[0].step} to {self.reports[-1].step}" if self.reports else "none"
            what = "no step yet" if only is None else f"no step {only}; it has {have}"
            raise NothingToVerify(f"run {self.run.run_id} has {what}")
        if wanted:
            self.run.recipe  # noqa: B018 - raises before a long comparison begins
        self.result.add(missing)
        copies = {report_digest(link.body["report"]): link.name for link in self.chain.steps.values()}
        before: int | None = None
        for count, at in enumerate(wanted):
            progress(count, len(wanted))
            await self._step(at, stored.get(at), copies, first=at[0] != before)
            before = at[0]
        progress(len(wanted), len(wanted))

    async def _step(
        self, at: At, report: StepReport | None, copies: Mapping[str, str], *, first: bool
    ) -> None:
        """One step of one policy. ``first``: of the policies that share its rollouts."""
        (number, policy), chain, result = at, self.chain, self.result
        link = chain.steps.get(at)
        stored = [one for one in await self.run.fingerprints(number) if one.policy == policy]
        if link is not None:
            one = from_link(self.run, link, report, stored, copies)
        else:
            if not self.finished and (number in chain.waiting or await self._is_redone(number, stored)):
                result.redone += [number] if first else []
                return
            tampered = ("step", f"{number}/{policy}") in chain.tampered
            if chain.links and number >= chain.first_step and not tampered:
                copied = copies.get(report_digest(report))
                how = f"a copy of step {copied}, made" if copied else "added"
                self.add(
                    f"the store has a report of it, and the chain has no link ({how} after training)", number
                )
                return
            assert report is not None
            one = from_store(self.run, report, stored)
        result.add(await one.check())
        result.steps += first
        if one.batch is not None:
            result.rollouts += len(one.rollouts) if first else 0
            result.rows += len(one.batch.rows)
            result.tokens += sum(row.trained_tokens for row in one.batch.rows)
        self.checked.append(one)

    def _stored_reports(self) -> dict[At, StepReport]:
        """Return the store's reports, and name those that are there twice or out of order."""
        stored: dict[At, StepReport] = {}
        last = -1
        for report in self.reports:
            at = (report.step, report.policy)
            if at in stored:
                what = (
                    "the store has two reports of it: one was copied over, or to the place of, another step"
                )
                self.add(f"{what} (after training)", report.step)
                continue
            if report.step < last:
                what = f"its report stands behind that of step {last} (moved or exchanged after training)"
                self.add(what, report.step)
            last = max(last, report.step)
            stored[at] = report
        return stored

    async def _is_redone(self, step: int, stored: Sequence[RolloutFingerprint]) -> bool:
        """Whether a resumed run is rolling out this step again: its old report and fingerprints are not
        compared until the run reports the step again.
        """
        lives = self.run.info.get("resumed") or []
        if self.finished or not lives or step < lives[-1]["first_step"]:
            return False
        known = await self.run.known([one.rollout_id for one in stored])
        if any(not rollout.status.final for rollout in known.values()):
            return True
        earlier = {e.attempt_id for record in await readable(self.run, list(known)) for e in record.earlier}
        return any(one.attempt_id in earlier for one in stored)

    async def _missing_steps(self, reports: Sequence[StepReport]) -> list[Difference]:
        """Find the steps without a report: between other steps, with fingerprints, or of a finished run."""
        chain, trained = self.chain, sorted(self.run.trained)
        reported = {(report.step, report.policy) for report in reports} | set(chain.steps)
        have = {step for step, _ in reported} | chain.waiting
        end = max(have, default=-1) + 1
        if await self.run.fingerprints(end):
            end += 1
        planned = (self.run.info.get("summary") or {}).get("steps")
        if reports and isinstance(planned, int):
            end = max(end, planned)
        text = "its report{} is missing (deleted after training)"
        found = [make_difference("step", text.format(""), step=n) for n in range(end) if n not in have]
        for step in sorted(have):
            if step + 1 < end or self.finished:  # a run that broke off may lack some of its last step
                lacking = [policy for policy in trained if (step, policy) not in reported]
                found += [make_difference("step", text.format(f" of policy {p}"), step=step) for p in lacking]
        return found

    async def everything_else(self) -> None:
        """Compare evaluations, summary, files, checkpoints and parameters, and name unknown rollouts."""
        run, chain, result = self.run, self.chain, self.result
        logged = sorted((one.report for one in self.checked), key=lambda report: report.step)
        made, found = await compare_evaluations(run, chain)
        result.evaluations = len(made)
        result.add(found)
        result.add(await compare_searches(run, chain))
        result.add(compare_summary(run, chain))
        if result.equal:
            result.add(compare_headline(run, chain, made, logged))
        result.add(compare_lines(run, logged, in_file_order(chain, made)))
        result.checkpoints, found = await asyncio.to_thread(compare_checkpoints, run, chain)
        result.add(found)
        result.add(await asyncio.to_thread(compare_policy, run, chain))
        result.add(await self._unknown_rollouts())
        result.params, found = await asyncio.to_thread(compare_parameters, run, logged)
        result.add(found)

    async def _unknown_rollouts(self) -> list[Difference]:
        """Find the rollouts of a finished run that no step trained and no evaluation counted. Cancelled
        rollouts were running when it ended.
        """
        chain = self.chain
        if not self.finished or not chain.links or chain.first_step or chain.tampered:
            return []
        known = {rollout for step in self.checked for rollout in step.rollouts}
        known |= {one.rollout_id for link in chain.links for one in link.fingerprints}
        cancelled = RolloutStatus.CANCELLED
        unknown = [
            rollout
            async for page in pages(self.run.store.query_rollouts, run_id=self.run.run_id)
            for rollout in page
            if rollout.rollout_id not in known and rollout.status != cancelled
        ]
        what = "no step and no evaluation knows it ({}, {}): added after training"
        return [
            make_difference("added", what.format(r.mode, r.status), rollout=r.rollout_id, now=str(r.status))
            for r in unknown
        ]


def _notes(run: OpenRun, chain: Chain, key: str | None) -> list[str]:
    """Say which parts were not compared, and why."""
    if not chain.links:
        return [
            "this run has no chain: steps are compared with their fingerprints; whether a step, an "
            "evaluation, a summary or a checkpoint was replaced whole is unknown"
        ]
    notes: list[str] = []
    if chain.first_step:
        notes.append(f"the chain begins at step {chain.first_step}: earlier steps have no link")
    if run.folder is None:
        notes.append(
            "files, checkpoints and the exported policy not compared: this store lies in no run's folder"
        )
    if key is None and any(link.signature for link in chain.links):
        notes.append(f"its chain is signed; {KEY_VARIABLE} is not set here, so the signature was not checked")
    return notes
