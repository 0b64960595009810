"""Read the records of rollouts from a store that may be damaged."""

from __future__ import annotations

from collections.abc import Sequence

from agentlightning.audit.run import OpenRun
from agentlightning.audit.verification.differences import Difference, make_difference
from agentlightning.types import Record


async def read_records(
    run: OpenRun, rollouts: Sequence[str], step: int | None, of: str | None = None
) -> tuple[list[Record], list[Difference]]:
    """Return the records of ``rollouts``, and a difference for each rollout that the store lost or cannot
    read.
    """
    known = await run.known(rollouts)
    what = "the store no longer has it (deleted after training)"
    lost = [make_difference("missing", what, of=of, step=step, rollout=r) for r in rollouts if r not in known]
    here = [rollout for rollout in rollouts if rollout in known]
    if together := await readable(run, here):
        return together, lost
    records: list[Record] = []
    for rollout in here:
        try:
            records += await run.store.records([rollout])
        except Exception as error:
            what = f"its record cannot be read ({type(error).__name__}: {error}): damaged after training"
            lost.append(make_difference("unreadable", what, of=of, step=step, rollout=rollout))
    return records, lost


async def readable(run: OpenRun, rollouts: Sequence[str]) -> list[Record]:
    """Return all records, or none if one of them is damaged."""
    try:
        return await run.store.records(rollouts)
    except Exception:
        return []
