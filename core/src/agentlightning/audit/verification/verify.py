"""Verify a run: recompute all that can be recomputed from the store, and compare it with what was logged.

The chain holds what was logged (:mod:`.chain`). Steps are recomputed as ``records → credit → fingerprints``
(:mod:`.steps`), evaluations from their rollouts (:mod:`.evaluations`), and the run's record and files are
compared with both (:mod:`.record`, :mod:`.folder`). Only links that match their heads are trusted; of a run
without a chain, the fingerprints and digests in its store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentlightning.audit.run import CannotRecompute, OpenRun
from agentlightning.audit.verification.chain import Chain, read_chain
from agentlightning.audit.verification.compare import Difference, make_difference
from agentlightning.audit.verification.evaluations import compare_evaluations, in_file_order
from agentlightning.audit.verification.folder import compare_checkpoints, compare_parameters, compare_policy
from agentlightning.audit.verification.reading import readable
from agentlightning.audit.verification.record import (
    compare_headline,
    compare_lines,
    compare_record,
    compare_summary,
)
from agentlightning.audit.verification.steps import StepCheck, from_link, from_store, report_digest
from agentlightning.credit.fingerprints.chain import KEY_VARIABLE
from agentlightning.store.pages import pages
from agentlightning.types import RolloutFingerprint, RolloutStatus, StepReport
from agentlightning.types.base import Model


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
    """What was not compared, or only in part, and why."""
    params: str = ""
    """What the parameters were compared with, or why they were not; empty for a single step."""
    redone: list[int] = []
    """Steps that a resumed run is making again: not compared."""
    equal: bool = True
    differences: list[Difference] = []
    """Root causes first, step by step."""

    def add(self, found: Iterable[Difference]) -> None:
        """Enter differences; those that the policies of a step share, once."""
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
    """Compare the run, or one of its steps (counted from 0). ``progress``: steps done, of how many. ``key``:
    what its chain was signed with (``AGL_SEAL_KEY``); ``head``: what it must end with.

    Raises :class:`CannotRecompute` where there is nothing to compare with.
    """
    key = key or os.environ.get(KEY_VARIABLE) or None
    chain = await read_chain(run, key, head)
    result = Verification(
        run=run.run_id, links=len(chain.links), head=chain.head, notes=_notes(run, chain, key)
    )
    result.add(chain.found)
    if step is None:
        result.add(compare_record(run, chain))
    if chain.start is not None:
        run.info = {**run.info, **chain.start.body["info"]}  # an edited record is named once, above
    reports = await run.store.query_steps(run.run_id)
    verifier = _Verifier(run, chain, result, reports)
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

    async def steps(self, only: int | None, progress: Progress) -> None:
        """Make every step that was logged again, and name those that are missing or were added."""
        stored = self._stored_reports()
        wanted = sorted(at for at in {*self.chain.steps, *stored} if only in (None, at[0]))
        missing = await self._missing_steps([*stored.values()]) if only is None else []
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
        stored = [one for one in await self.run.seals(number) if one.policy == policy]
        redone = link is None and (number in chain.waiting or await self._is_redone(number, stored))
        if redone and not self.finished:
            result.redone += [number] if first else []
            return
        tampered = ("step", f"{number}/{policy}") in chain.tampered
        if link is None and chain.links and number >= chain.first_step and not tampered:
            copied = copies.get(report_digest(report))
            how = f"a copy of step {copied}, made" if copied else "added"
            what = f"the store has a report of it, and the chain has no link ({how} after training)"
            result.add([make_difference("step", what, step=number)])
            return
        if link is None:
            assert report is not None
            one = from_store(self.run, report, stored)
        else:
            one = from_link(self.run, link, report, stored, copies)
        result.add(await one.check())
        result.steps += first
        if one.batch is not None:
            result.rollouts += len(one.rollouts) if first else 0
            result.rows += len(one.batch.rows)
            result.tokens += sum(row.trained_tokens for row in one.batch.rows)
        self.checked.append(one)

    def _stored_reports(self) -> dict[At, StepReport]:
        """The store's reports; those that are there twice or out of order are named."""
        stored: dict[At, StepReport] = {}
        last = -1
        for report in self.reports:
            at = (report.step, report.policy)
            if at in stored:
                what = (
                    "the store has two reports of it: one was copied over, or to the place of, another step"
                )
                self.result.add([make_difference("step", f"{what} (after training)", step=report.step)])
                continue
            if report.step < last:
                what = f"its report stands behind that of step {last} (moved or exchanged after training)"
                self.result.add([make_difference("step", what, step=report.step)])
            last = max(last, report.step)
            stored[at] = report
        return stored

    async def _is_redone(self, step: int, stored: Sequence[RolloutFingerprint]) -> bool:
        """Whether a resumed run is rolling out this step again: its report and fingerprints count for
        nothing until it is reported anew.
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
        """Steps without a report: between others, fingerprinted, or of a run that says it was finished."""
        chain, trained = self.chain, sorted(self.run.trained)
        reported = {(report.step, report.policy) for report in reports} | set(chain.steps)
        have = {step for step, _ in reported} | chain.waiting
        end = max(have, default=-1) + 1
        if await self.run.seals(end):
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
        """Evaluations, summary, files, checkpoints, parameters, and rollouts that nothing accounts for."""
        run, chain, result = self.run, self.chain, self.result
        logged = sorted((one.report for one in self.checked), key=lambda report: report.step)
        made, found = await compare_evaluations(run, chain)
        result.evaluations = len(made)
        result.add(found)
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
        """Rollouts of a finished run that no step trained and no evaluation counted. Cancelled ones were
        under way when it ended.
        """
        chain = self.chain
        if not self.finished or not chain.links or chain.first_step or chain.tampered:
            return []
        known = {rollout for step in self.checked for rollout in step.rollouts}
        known |= {one.rollout_id for link in chain.links for one in link.seals}
        found: list[Difference] = []
        async for page in pages(self.run.store.query_rollouts, run_id=self.run.run_id):
            for rollout in page:
                if rollout.rollout_id not in known and rollout.status != RolloutStatus.CANCELLED:
                    which = f"{rollout.mode}, {rollout.status}"
                    what = f"no step and no evaluation knows it ({which}): added after training"
                    found.append(
                        make_difference("added", what, rollout=rollout.rollout_id, now=str(rollout.status))
                    )
        return found


def _notes(run: OpenRun, chain: Chain, key: str | None) -> list[str]:
    """What was not compared, and why."""
    if not chain.links:
        return [
            "this run has no chain (it was trained by an older version): steps are compared with their "
            "fingerprints; whether a step, an evaluation, a summary or a checkpoint was replaced whole is "
            "unknown"
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
