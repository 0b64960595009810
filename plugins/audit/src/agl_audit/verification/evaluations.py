"""Recompute the evaluations of a run from their rollouts, and the summary's headline from the evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agentlightning.algorithms.evaluate import summarise
from agentlightning.algorithms.evaluations import scores, sets_summary
from agentlightning.credit.digest import plain
from agentlightning.credit.fingerprint import fingerprint_record
from agentlightning.store.pages import pages
from agentlightning.types import AuditLink, Evaluation, RolloutFingerprint
from agl_audit.run import OpenRun
from agl_audit.store.fingerprints import header
from agl_audit.verification.chain import Chain
from agl_audit.verification.compare import input_differences
from agl_audit.verification.differences import (
    Difference,
    close,
    leaf_differences,
    make_difference,
    read_records,
    shorten,
    value_differences,
)


async def compare_evaluations(run: OpenRun, chain: Chain) -> tuple[dict[str, Evaluation], list[Difference]]:
    """Return batch → evaluation as it was logged, and the differences: in the run's record, in the rollouts,
    in their mean.
    """
    noted: Mapping[str, Any] = run.info.get("evaluations") or {}
    found: list[Difference] = []
    made: dict[str, Evaluation] = {}
    for batch in dict.fromkeys([*chain.evaluations, *noted]):
        of, link = f"evaluation {batch}", chain.evaluations.get(batch)
        if link is not None:
            found += _compare_with_record(run, chain, link, noted.get(batch), of)
            entry, fingerprints = link.body, link.fingerprints
        elif ("evaluation", batch) in chain.tampered:
            continue
        elif chain.links and chain.first_step == 0:
            what = "it is in the run's record, and the chain has no link of it (added after training)"
            found.append(make_difference("evaluation", what, of=of, now=noted[batch]))
            continue
        else:
            entry, fingerprints = noted[batch], await _without_fingerprints(run, batch)
        made[batch], different = await _recompute(run, entry, fingerprints, of)
        found += different
    return made, found


def _compare_with_record(
    run: OpenRun, chain: Chain, link: AuditLink, entry: Any, of: str
) -> Iterator[Difference]:
    """Compare the run's record of an evaluation with the logged one."""
    if entry is None:
        if run.info.get("summary") or link is not chain.links[-1]:  # else the run ended between the two
            what = "it is missing from the run's record (removed after training)"
            yield make_difference("evaluation", what, of=of)
        return
    yield from value_differences("evaluation", link.body, plain(entry), "the run's record says", of=of)


async def _recompute(
    run: OpenRun, entry: Mapping[str, Any], fingerprints: list[RolloutFingerprint], of: str
) -> tuple[Evaluation, list[Difference]]:
    """Return an evaluation as it was logged, and where its rollouts in the store give another one."""
    logged = msgspec.convert(entry["evaluation"], Evaluation)
    if not fingerprints:
        return logged, []
    records, found = await read_records(run, [s.rollout_id for s in fingerprints], None, of)
    for record in records:
        then = next(s for s in fingerprints if s.rollout_id == record.rollout.rollout_id)
        if then.status:
            found += input_differences(then, fingerprint_record(record, **header(then)), of)
    if found:
        return logged, found
    again = summarise(logged.name, records, logged.seconds, run.counting)
    rollouts = {f"rewards[{index}]": one.rollout_id for index, one in enumerate(fingerprints)}
    for path, was, is_ in leaf_differences(plain(logged), plain(again)):
        if not close(was, is_):
            what = f"{path} was logged as {shorten(was)}, its rollouts in the store give {shorten(is_)}"
            what += " (edited after training)"
            rollout = rollouts.get(path)
            found.append(make_difference("evaluation", what, of=of, rollout=rollout, then=was, now=is_))
    return logged, found


async def compare_searches(run: OpenRun, chain: Chain) -> list[Difference]:
    """Compare the rollouts of searches with their fingerprints; of searches of one name, the last counts."""
    found: list[Difference] = []
    last = {link.name: link for link in chain.links if link.kind == "search"}
    for link in last.values():
        of = f"search {link.name}"
        then = {one.rollout_id: one for one in link.fingerprints}
        records, lost = await read_records(run, list(then), None, of)
        found += lost
        for record in records:
            was = then[record.rollout.rollout_id]
            found += input_differences(was, fingerprint_record(record, **header(was)), of)
    return found


async def _without_fingerprints(run: OpenRun, batch: str) -> list[RolloutFingerprint]:
    """Find the rollouts of an evaluation of a run without a chain, in order, by the names of their groups."""
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
    """Return the evaluations that the run's file must hold, in order: a run that goes on after its end
    evaluates again, and the file keeps both.
    """
    unlinked = [evaluation for batch, evaluation in made.items() if batch not in chain.evaluations]
    return unlinked + [msgspec.convert(link.body["evaluation"], Evaluation) for link in chain.in_file_order]


def headline(made: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return the entries about evaluations that a run's summary must have."""

    found: dict[str, Any] = {}
    for when in ("before", "after"):
        if one := made.get(f"eval/{when}/1"):
            found |= scores(when, one)
        if sampled := made.get(f"eval/{when}-sampled/1"):
            found[f"sampled_{when}"] = sampled.reward
    before, after = made.get("eval/before/1"), made.get("eval/after/1")
    if before:
        found["eval_tasks"] = before.n
    if before and after:
        found["eval_failed"] = [before.failed, after.failed]
        found["eval_left_out"] = [before.left_out, after.left_out]
    return found | _of_sets(made)


def _of_sets(made: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Return the summary's entry of the named sets."""
    found: dict[str, dict[str, Evaluation]] = {"before": {}, "after": {}}
    for batch, evaluation in made.items():
        _, when, *rest = batch.split("/")
        if when in found and len(rest) == 2 and rest[1] == "1":
            found[when][rest[0]] = evaluation
    return {"sets": sets_summary(found)} if any(found.values()) else {}


def headroom(made: Mapping[str, Evaluation], names: Iterable[str]) -> dict[str, Any]:
    """Return the rewards that the summary's headroom must have; that of ``policy`` is the one before."""
    batches = {name: f"eval/{'before' if name == 'policy' else name}/1" for name in names}
    return {name: made[batch].reward for name, batch in batches.items() if batch in made}
