"""Make the evaluations of a run again from their rollouts, and the summary's headline from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agentlightning.algorithms.evaluate import summarise
from agentlightning.audit.run import OpenRun
from agentlightning.audit.verification.chain import Chain
from agentlightning.audit.verification.compare import Difference, input_differences, make_difference
from agentlightning.audit.verification.reading import read_records
from agentlightning.audit.verification.values import close, differences, shorten
from agentlightning.credit.fingerprints.chain import plain
from agentlightning.credit.fingerprints.fingerprint import fingerprint_record
from agentlightning.store.pages import pages
from agentlightning.types import AuditLink, Evaluation, RolloutFingerprint

MEASURED = frozenset({"seconds"})
"""Measured fields of an evaluation, which cannot be recomputed."""


async def compare_evaluations(run: OpenRun, chain: Chain) -> tuple[dict[str, Evaluation], list[Difference]]:
    """Batch → evaluation as it was logged, and the differences: in the run's record, in its rollouts, in
    their mean.
    """
    noted: Mapping[str, Any] = run.info.get("evaluations") or {}
    found: list[Difference] = []
    made: dict[str, Evaluation] = {}
    for batch, link in chain.evaluations.items():
        of = f"evaluation {batch}"
        found += _compare_with_record(run, chain, link, noted.get(batch), of)
        made[batch], different = await _recompute(run, link.body, link.seals, of)
        found += different
    for batch in noted:
        if batch in chain.evaluations or ("evaluation", batch) in chain.tampered:
            continue
        of = f"evaluation {batch}"
        if chain.links and chain.first_step == 0:
            what = "it is in the run's record, and the chain has no link of it (added after training)"
            found.append(make_difference("evaluation", what, of=of, now=noted[batch]))
        else:
            made[batch], different = await _recompute(
                run, noted[batch], await _without_fingerprints(run, batch), of
            )
            found += different
    return made, found


def _compare_with_record(
    run: OpenRun, chain: Chain, link: AuditLink, entry: Any, of: str
) -> Iterator[Difference]:
    """Where the run's record of an evaluation differs from the logged one."""
    if entry is None:
        if run.info.get("summary") or link is not chain.links[-1]:  # else the run ended between the two
            what = "it is missing from the run's record (removed after training)"
            yield make_difference("evaluation", what, of=of)
        return
    for path, was, now in differences(link.body, plain(entry)):
        what = f"{path} was {shorten(was)} when it was logged, the run's record says {shorten(now)} (edited)"
        yield make_difference("evaluation", what, of=of, then=was, now=now)


async def _recompute(
    run: OpenRun, entry: Mapping[str, Any], seals: list[RolloutFingerprint], of: str
) -> tuple[Evaluation, list[Difference]]:
    """An evaluation as it was logged, and where its rollouts in the store give another one."""
    logged = msgspec.convert(entry["evaluation"], Evaluation)
    if not seals:
        return logged, []
    records, found = await read_records(run, [s.rollout_id for s in seals], None, of)
    for record in records:
        then = next(s for s in seals if s.rollout_id == record.rollout.rollout_id)
        if then.status:
            now = fingerprint_record(
                record,
                run_id=then.run_id,
                step=then.step,
                policy=then.policy,
                version=then.version,
                layout=then.layout,
            )
            found += input_differences(then, now, of)
    if found:
        return logged, found
    again = summarise(logged.name, records, logged.seconds)
    for path, was, is_ in differences(plain(logged), plain(again)):
        if path not in MEASURED and not close(was, is_):
            where = _task(path, [s.rollout_id for s in seals])
            what = f"{path} was logged as {shorten(was)}, its rollouts in the store give {shorten(is_)}"
            found.append(
                make_difference(
                    "evaluation", f"{what} (edited after training)", of=of, rollout=where, then=was, now=is_
                )
            )
    return logged, found


def _task(path: str, rollouts: list[str]) -> str | None:
    """The rollout whose reward ``rewards[i]`` is."""
    place = path.removeprefix("rewards[").removesuffix("]")
    return rollouts[int(place)] if place.isdigit() and int(place) < len(rollouts) else None


async def _without_fingerprints(run: OpenRun, batch: str) -> list[RolloutFingerprint]:
    """The rollouts of an evaluation of a run without a chain, by the names of their groups, in order."""
    before = f"{run.run_id}/{batch}/"
    placed: list[tuple[int, str]] = []
    async for page in pages(run.store.query_rollouts, run_id=run.run_id):
        for rollout in page:
            place = (rollout.group_id or "").removeprefix(before)
            if place.isdigit():
                placed.append((int(place), rollout.rollout_id))
    return [
        RolloutFingerprint(run_id=run.run_id, step=-1, rollout_id=name, policy=batch)
        for _, name in sorted(placed)
    ]


def in_file_order(chain: Chain, made: Mapping[str, Evaluation]) -> list[Evaluation]:
    """The evaluations that the run's file holds, in order: a run that goes on after its end evaluates again,
    and the file keeps both.
    """
    unlinked = [evaluation for batch, evaluation in made.items() if batch not in chain.evaluations]
    return unlinked + [msgspec.convert(link.body["evaluation"], Evaluation) for link in chain.in_file_order]


def headline(made: Mapping[str, Evaluation]) -> dict[str, Any]:
    """The entries about evaluations that a run's summary must have."""

    def of(name: str) -> Evaluation | None:
        return made.get(f"eval/{name}/1")

    found: dict[str, Any] = {}
    for when in ("before", "after"):
        if one := of(when):
            found |= {f"reward_{when}": one.reward, f"ci_{when}": list(one.ci) if one.ci else None}
        if sampled := of(f"{when}-sampled"):
            found[f"sampled_{when}"] = sampled.reward
    before, after = of("before"), of("after")
    if before:
        found["eval_tasks"] = before.n
    if before and after:
        found["eval_failed"] = [before.failed, after.failed]
    return found


def headroom(made: Mapping[str, Evaluation], names: Mapping[str, Any]) -> dict[str, Any]:
    """The rewards that the summary's headroom must have."""
    found = {name: made[f"eval/{name}/1"].reward for name in names if f"eval/{name}/1" in made}
    return found | (
        {"policy": made["eval/before/1"].reward} if "policy" in names and "eval/before/1" in made else {}
    )
