"""Capture: the calls of the user's agent come back exact, and their rewards arrive."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from agentlightning.algorithms.evaluate import failure_reasons
from agentlightning.credit.rewards import resolve
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.credit.verdicts import (
    engine_refusal,
    refusal_of,
    refused,
    unrecorded,
    verdicts,
)
from agentlightning.terminal import plural
from agentlightning.train.policies import Policies
from agentlightning.types import Record, RolloutStatus
from agentlightning.types.select import NAME_TAGS, UNKNOWN, Select, caller_name
from agl_testing.doctor.checks.agent_code import Fault, faults_of_run, watched_hosts
from agl_testing.doctor.checks.packages import imported_sdk_wrappers
from agl_testing.doctor.checks.policy_map import judge_mapping
from agl_testing.doctor.figures import format_counts
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.memory import measure
from agl_testing.doctor.probe import probe_tasks, reads_rewards, run_rollouts
from agl_testing.doctor.report import Check, Notes

PROBES = 4
"""Rollouts of the first task."""
ENDPOINT = (
    "Give the agent's model client llm.endpoint and llm.api_key, or let it read OPENAI_BASE_URL and "
    "OPENAI_API_KEY."
)

REFUSED = (
    "Such a call gets no answer, even if the agent goes on without it: change what it asks for. The spans of "
    "`agl trace` have the whole messages."
)

TEMPLATE = (
    "The policy's chat template has rules, for roles and their order or for calls, and this conversation "
    "breaks one: `agl policy check` lists them. Change what the agent sends, or the template; `agl trace` "
    "has the template's own words."
)
"""Advice for calls that the engine refused by its code ``chat_template``."""

EVENT = 'Post a reward as {"event_type": "reward", "data": {"value": 1.0}}; the answer says what was wrong.'
"""Advice for events of a program that were refused."""


async def check_capture(findings: Findings) -> Check:
    """Run a few rollouts of the user's agent on one task and judge how its calls were captured."""
    configured = findings.require_configured()
    samples = min(PROBES, findings.samples)
    with watched_hosts() as hosts:
        findings.probe = await run_rollouts(
            findings, probe_tasks(configured, findings.size.tasks)[:1], samples, name="capture"
        )
    findings.usage.append(measure("first rollouts"))
    served = configured.trainer.config.served if configured.trainer.config.served.named else None
    unrouted = findings.require_context().gateway.metrics.unrouted
    gateway = urlsplit(findings.require_context().gateway.url).netloc
    elsewhere = Counter({host: n for host, n in hosts.items() if host != gateway})
    faults = faults_of_run(configured)
    select, rewarded = configured.trainer.config.agent.select, reads_rewards(configured.trainer)
    lost = (await findings.require_context().accounts()).get("capture", {})
    return judge_capture(
        findings.probe, select, served, unrouted, elsewhere, faults, rewarded, lost.get("bad-event", 0)
    )


def judge_capture(
    records: Sequence[Record],
    select: Select = None,
    served: Policies | None = None,
    unrouted: Mapping[str, int] | None = None,
    elsewhere: Mapping[str, int] | None = None,
    faults: Sequence[Fault] = (),
    rewarded: bool = True,
    bad_events: int = 0,
) -> Check:
    """Judge how calls were captured. Pure.

    ``served`` names the policies of a run with named policies; ``unrouted`` counts calls that were refused
    because no policy is assigned to their agent; ``elsewhere``: calls by the host that they went to in place
    of the gateway; ``faults``: places in the code that may be why;
    ``rewarded``: whether training reads rewards; ``bad_events``: refused events that programs posted.
    """
    notes = Notes()
    frozen = {c.call_id for r in records for c in r.calls if served and c.policy in served.frozen}
    judged = {i: v for record in records for i, v in verdicts(record).items() if i not in frozen}
    found = list(judged.values())
    kinds = Counter(verdict.kind for verdict in found)
    bypassed = sum(len(unrecorded(record)) for record in records)
    agents = Counter(caller_name(call.tags) for record in records for call in record.calls)
    if bad_events:
        notes.warn(f"{plural(bad_events, 'event')} posted to AGL_EVENT_URL refused as malformed", EVENT)
    _ends(notes, records, rewarded)
    refusals = _refusals(records)
    _calls(notes, len(found), bypassed, refusals)
    went_past = bool(bypassed or elsewhere or not (found or refusals))
    for fault in reversed(faults if went_past else ()):
        fault.tell(notes, fail=not found)
    if elsewhere:
        notes.fact(f"requests went to {format_counts(Counter(elsewhere))}, which is not the gateway")
    for (kind, reason), n in Counter((v.kind, v.reason) for v in found if v.kind != "exact").items():
        _inexact(notes, kind, reason, n)
    if kinds["mismatch"] + kinds["no-ids"] == len(found) > 0:
        notes.fail("no call can be trained: none has ids that agree", "See the verdicts above.")
    _selection(notes, records, select, agents)
    if served is not None:
        judge_mapping(notes, served, records, unrouted or {})
    notes.fact(f"calls came from: {format_counts(agents) or 'nobody'}")
    rewards = [rollout_reward(record).value for record in records]
    given = [reward for reward in rewards if reward is not None]
    notes.fact(f"rewards: {', '.join(f'{reward:g}' for reward in given) or 'none'}")
    title = f"{kinds['exact']} of {plural(len(found), 'call')} exact, in {plural(len(records), 'rollout')}"
    return notes.check(
        "capture",
        title,
        verdicts=dict(kinds),
        past=bypassed,
        refused=dict(refusals),
        agents=dict(agents),
        rewards=rewards,
        calls=len(found),
        elsewhere=dict(elsewhere or {}),
        faults=[fault._asdict() for fault in faults] if went_past else [],
    )


def _ends(notes: Notes, records: Sequence[Record], rewarded: bool) -> None:
    """Count how the rollouts ended. A rollout without a reward counts as a problem, if rewards are read."""
    failed = [r for r in records if r.rollout.status != RolloutStatus.SUCCEEDED]
    if failed:
        say, why = notes.fail if len(failed) == len(records) else notes.warn, failure_reasons(failed)
        say(
            f"{len(failed)} of {plural(len(records), 'rollout')} failed: {why}",
            f"Mend the agent or its environment{_missing(why)}; failed rollouts are left out of training.",
        )
    unrewarded = [r for r in records if r not in failed and not _rewarded(r)]
    if unrewarded and rewarded:
        say = notes.fail if len(unrewarded) == len(records) else notes.warn
        say(
            f"{len(unrewarded)} of {plural(len(records), 'rollout')} returned without a reward",
            "Return a number from the agent, or call agl.emit_reward(…) in it.",
        )


def _missing(why: str) -> str:
    """Return what installs the modules that failed rollouts did not find, as a part of an advice."""
    names = set(re.findall(r"No module named '(\w+)", why))
    return f": `pip install {' '.join(sorted(names))}` where it runs" if names else ""


def _rewarded(record: Record) -> bool:
    rewards = resolve(record)
    return any(v is not None for v in (rewards.final, *rewards.calls.values(), *rewards.agents.values()))


def _refusals(records: Sequence[Record]) -> Counter[str]:
    """Return reason → calls that the gateway or the engine refused."""
    ours = [refusal_of(span) for record in records for span in refused(record)]
    engines = [engine_refusal(call) for record in records for call in record.calls]
    return Counter([*ours, *(reason for reason in engines if reason is not None)])


def _calls(notes: Notes, recorded: int, bypassed: int, refusals: Counter[str]) -> None:
    if refusals:
        say = notes.warn if recorded else notes.fail
        ours = all("chat_template" in reason for reason in refusals)
        problem = f"{plural(refusals.total(), 'call')} refused: {format_counts(refusals)}"
        say(problem, TEMPLATE if ours else REFUSED)
    if bypassed:
        say = notes.warn if recorded else notes.fail
        say(f"{plural(bypassed, 'call')} went past the gateway: seen, not recorded", ENDPOINT)
    elif not recorded and not refusals:
        notes.fail("the agent made no model call", ENDPOINT)


def _inexact(notes: Notes, kind: str, reason: str, n: int) -> None:
    """Report one kind of inexact call and where to look."""
    patchers = imported_sdk_wrappers()
    also = f" Others wrap the openai SDK in this process: {', '.join(patchers)}." if patchers else ""
    advice = {
        "gateway-only": "Trained, but not confirmed: nothing in the agent's process saw the answer. Use the "
        f"openai SDK in this process, or accept it.{also}",
        "wire-only": "The gateway's answer had no ids: check that the call went to the trained policy.",
        "cancelled": "Not trained: what the agent did next does not follow from the rest of the answer.",
        "no-ids": "Not trained. Serve the policy with an engine that returns token ids.",
        "mismatch": f"Not trained: the engine contradicts itself, or something changed the answer.{also}",
    }
    notes.warn(f"{plural(n, 'call')} {kind}: {reason}", advice[kind])


def _selection(notes: Notes, records: Sequence[Record], select: Select, agents: Counter[str]) -> None:
    """Report which agents are selected for training, and calls without a name."""
    calls = [call for record in records for call in record.calls]
    if 0 < (unnamed := sum(call.tags.get("role") == UNKNOWN for call in calls)) < len(calls):
        notes.warn(
            f"{plural(unnamed, 'call')} without an agent's name (role {UNKNOWN!r})",
            "Switch on the adapter of the framework, decorate the agent's class with @agl.agent, or make the "
            "calls within `with agl.tagged(agent=…)`.",
        )
    chosen = Counter(caller_name(call.tags) for call in calls if call.selected)
    if not calls or (select is None and chosen == agents):
        return
    if chosen:
        others = sorted(set(agents) - set(chosen))
        notes.fact(
            f"trained: {format_counts(chosen)}" + (f"; not trained: {', '.join(others)}" if others else "")
        )
    elif select is None:
        notes.fail(
            f"no call is chosen for training: calls came from {', '.join(sorted(agents))}",
            "See select= of the classes marked with @agl.agent, and that the calls go to a trained policy.",
        )
    else:
        names = sorted({call.tags[tag] for call in calls for tag in NAME_TAGS if tag in call.tags})
        notes.fail(
            f"`select` ({select}) matches nobody: calls came from {', '.join(sorted(agents))}",
            f"Set agent.select to a name of theirs ({', '.join(names)}), or drop it to train them all.",
        )
