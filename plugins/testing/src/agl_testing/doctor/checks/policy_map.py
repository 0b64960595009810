"""Named policies: which agents called which policy in the probe, and which agents have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from agentlightning.terminal import plural
from agentlightning.train.policies import CATCH_ALL, Policies
from agentlightning.types import Record
from agentlightning.types.select import caller_name, policy_for
from agl_testing.doctor.figures import format_counts
from agl_testing.doctor.report import Notes

MAP = "Name its agent, role or node in agent.policies; 're:.*' as the last entry takes all others."
ORDER = "The first entry that matches counts: put the narrower one first."


def judge_mapping(
    notes: Notes, served: Policies, records: Sequence[Record], unrouted: Mapping[str, int]
) -> None:
    """Report agents per policy. ``unrouted`` counts calls refused for want of a policy."""
    calls = [call for record in records for call in record.calls]
    for name in served.names:
        who = Counter(caller_name(call.tags) for call in calls if call.policy == name)
        kind = "trained" if name in served.trained else "frozen"
        notes.fact(f"policy {name} ({kind}) ← {format_counts(who) or 'nobody'}")
        if not who and name in served.trained:
            notes.warn(
                f"policy {name!r} got no call in the probe: nothing of it would be trained",
                "See who calls, below, and name them in agent.policies; or take the policy out.",
            )
    matched = [[e for e in served.routing if policy_for({e: ""}, call.tags) is not None] for call in calls]
    first = {entries[0] for entries in matched if entries}
    for entry, policy in served.agents.items():
        if entry in first or entry in unrouted or entry == CATCH_ALL:
            continue
        before = next((entries[0] for entries in matched if entry in entries), None)
        if before is None:
            problem = f"agent.policies: {entry!r} matched no call of the probe, so {policy!r} got none by it"
            notes.warn(problem, "Compare it with the names that calls came from.")
        else:
            notes.warn(
                f"agent.policies: {before!r} stands before {entry!r} and takes all of its calls", ORDER
            )
    for name, n in sorted(unrouted.items()):
        notes.fail(f"{name!r} maps to no policy: {plural(n, 'call')} refused", MAP)
