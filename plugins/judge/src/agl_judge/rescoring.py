"""Gives the groups of a stored run other rewards, as a version beside those that they ended with.

Judges that the run asked are answered from its record: the same question is not sent again. Groups are taken
in the order of their ids, so that what is new is asked in the same order, whoever rescores.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any

import msgspec

from agentlightning.algorithms.provenance import installed, source_digest
from agentlightning.store.pages import pages
from agentlightning.types import Record, Reward, UsageError
from agl_audit.history.rescoring.rescore import left_out
from agl_audit.run import OpenRun
from agl_audit.store.reward_versions import Rescored, RewardVersion, add_rescored, add_reward_version
from agl_judge.client import JUDGE, JudgeClient
from agl_judge.grading import grade_group
from agl_judge.group import Group, GroupFunction, GroupGrader, finished


def digest_of(grader: GroupGrader) -> str:
    """Return sha256 of a grader: of its settings, and of the source of the functions among them."""
    settings = (
        grader.function if isinstance(grader, GroupFunction) else getattr(grader, "given", vars(grader))
    )
    text = json.dumps([type(grader).__name__, settings], default=_plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    if not callable(value):
        return vars(value) if hasattr(value, "__dict__") else str(value)
    found = source_digest(value).both
    if found is None:
        raise UsageError(
            f"the source of {value!r} cannot be read, so that a changed function could not be told from this"
        )
    return found


async def rescore(
    run: OpenRun, grader: GroupGrader, client: JudgeClient, counts: Counter[str], name: str | None
) -> dict[str, Any]:
    """Store the rewards that ``grader`` gives the run's groups as the version ``name`` (default: the grader's
    name and eight digits of its digest), and return what was counted. ``counts``: what the client counts.
    """
    digest = digest_of(grader)
    version = RewardVersion(
        run_id=run.run_id,
        name=name or f"{grader.name}@{digest[:8]}",
        function=f"group:{grader.name}",
        digest=digest,
        code={"versions": {"agl-judge": installed("agl-judge")}},
    )
    version = await add_reward_version(run.store, version)
    groups: dict[str, list[str]] = {}
    async for page in pages(run.store.query_rollouts, run_id=run.run_id):
        for one in page:
            if JUDGE not in one.metadata and one.mode == "train":
                groups.setdefault(one.group_id or one.rollout_id, []).append(one.rollout_id)
    found: Counter[str] = Counter()
    for group_id in sorted(groups):
        records = sorted(await run.store.records(groups[group_id]), key=lambda one: one.rollout.sample)
        kept = [one for one in records if left_out(one) is None]
        found.update(str(why) for one in records if (why := left_out(one)) is not None)
        if kept:
            await _rescore_group(
                run, grader, Group(kept[0].rollout.input, group_id, (), {}, client), kept, version, found
            )
    judged = {what: n for what, n in counts.items() if n}
    return {
        "run_id": run.run_id,
        "name": version.name,
        "digest": digest,
        "groups": len(groups),
        **found,
        **judged,
    }


async def _rescore_group(
    run: OpenRun,
    grader: GroupGrader,
    group: Group,
    records: list[Record],
    version: RewardVersion,
    found: Counter[str],
) -> None:
    group.rollouts = tuple(finished(msgspec.structs.replace(one, rewards=own(one))) for one in records)
    attempts = {one.rollout.rollout_id: one.attempt.attempt_id for one in records if one.attempt}
    grades = await grade_group(grader, group, attempts)
    entries = [
        Rescored(
            rollout_id=one.rollout_id,
            version=version.name,
            rewards=[] if one.value is None else [Reward(value=one.value)],
            error=one.reason if one.reason.startswith(("grader-raised", "bad-verdict")) else None,
        )
        for one in grades
    ]
    found["stored"] += await add_rescored(run.store, entries)
    for one in grades:
        found["scored" if one.value is not None else f"missing/{one.reason.partition(':')[0]}"] += 1


def own(record: Record) -> list[Reward]:
    """Return the rewards that a rollout had before its group was graded."""
    return [one for one in record.rewards if "agl.group_reward.by" not in one.attributes]
