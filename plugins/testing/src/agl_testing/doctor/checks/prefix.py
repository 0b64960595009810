"""Whether later prompts extend earlier ones.

A prompt that begins with the ids of the earlier prompt and answer shares a row with them. Any other prompt
becomes a row of its own, and its context is computed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from agentlightning.credit.forest import build_forest
from agentlightning.terminal import plural
from agentlightning.types import Call
from agl_testing.doctor.figures import format_counts
from agl_testing.doctor.findings import Findings
from agl_testing.doctor.probe import ProbeAttempt, open_probe_attempt
from agl_testing.doctor.report import Check, Notes

ADVICE = {
    "think-stripped": "The template drops reasoning from earlier turns: keep it (a template option of most "
    "models), or count on one row a turn.",
    "template": "What stands before the answer is rendered otherwise next time: look for a date, for tools "
    "that are offered in one turn only, or for a system prompt that changes.",
    "retokenised": "The answer's text comes back as other tokens: send tool calls and texts back unchanged.",
    "edited": "The agent changes answers before it sends them back: strip or reformat them elsewhere.",
    "truncated": "Earlier messages are dropped: give the agent a longer memory window, or the policy a "
    "longer max_len.",
    "temperature": "Calls of one conversation have different temperatures: use one.",
}
"""Merge failure (see :mod:`agentlightning.credit.merge_failures`) → advice."""
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


class PrefixSharing(NamedTuple):
    """How the calls of some rollouts merge into rows."""

    rollouts: int
    calls: int
    merged: int
    breaks: dict[str, int]
    tokens_merged: int
    """Tokens of the rows."""
    tokens_apart: int
    """Tokens with one row per call."""
    tokens_ideal: int
    """Estimated tokens if every later turn extended: each agent's longest call."""

    @property
    def broken(self) -> int:
        """Calls that continue an earlier call without extending it. Intended branches are not counted."""
        return sum(n for reason, n in self.breaks.items() if reason != "branch")


async def check_prefix(findings: Findings) -> Check:
    """Measure the agent's own turns, or two made-up turns if it makes none."""
    recipe = findings.require_configured().trainer.recipe
    own = prefix_sharing([record.calls for record in findings.probe], recipe.temperature)
    if own.merged and not own.broken:
        return judge_prefix(own, "the agent's turns", merging=recipe.merge)
    async with open_probe_attempt(findings.require_context()) as calls:
        tool_called = await two_turns(calls)
        made = prefix_sharing([await calls.calls()], recipe.temperature)
    if own.broken:
        check = judge_prefix(own, "the agent's turns", merging=recipe.merge)
        check.detail.append(whose_fault(own, made))
        return check
    what = "two turns made up here" + (" with a tool call" if tool_called else ", without a tool call")
    check = judge_prefix(made, what, merging=recipe.merge)
    check.detail.append("the agent's own rollouts were single calls")
    return check


def whose_fault(own: PrefixSharing, made: PrefixSharing) -> str:
    """Say whether turns that doctor made up break as the agent's do. Pure."""
    if shared := sorted({*own.breaks} & {*made.breaks} - {"branch"}):
        return (
            f"two turns made up here break the same way ({', '.join(shared)}): it is the policy's chat "
            "template, not the agent; `agl policy check` says where"
        )
    if made.merged:
        return (
            "two turns made up here extend: it is what the agent sends back, not the policy's chat template"
        )
    return "no two turns could be made up here to compare"


def prefix_sharing(conversations: Iterable[Sequence[Call]], temperature: float = 1.0) -> PrefixSharing:
    """Merge the calls of each rollout and count rows and tokens. Pure."""
    rollouts = calls = merged = together = apart = ideal = 0
    breaks: Counter[str] = Counter()
    for conversation in conversations:
        usable = [c for c in conversation if c.status == "ok" and c.prompt_ids is not None and c.response_ids]
        forest = build_forest(usable, temperature=temperature)
        rollouts += 1
        calls += len(usable)
        merged += sum(len(path.own) - 1 for path in forest.paths)
        breaks.update(forest.merge_failures)
        together += sum(_length(path.own[-1]) for path in forest.paths)
        apart += sum(map(_length, usable))
        longest: dict[str, int] = {}
        for call in usable:
            agent = call.tags.get("agent", "")
            longest[agent] = max(longest.get(agent, 0), _length(call))
        ideal += sum(longest.values())
    return PrefixSharing(rollouts, calls, merged, dict(breaks), together, apart, min(ideal, together))


def judge_prefix(found: PrefixSharing, what: str, *, merging: bool = True) -> Check:
    """Judge whether ``what`` extends. Pure."""
    notes = Notes()
    turns = plural(found.broken + found.merged, "later turn")
    named = {reason: n for reason, n in found.breaks.items() if reason != "branch"}
    for reason in named:
        problem = f"history does not extend in {found.broken} of {turns} ({format_counts(named)})"
        notes.warn(problem, ADVICE.get(reason, f"See `agl explain` for breaks of kind {reason!r}."))
    if not found.merged + found.broken:
        notes.warn("no later turn could be compared", "Ask with a task that takes two turns.")
    notes.fact(_cost(found))
    if branches := found.breaks.get("branch"):
        notes.fact(f"calls that branch off, rows of their own by nature: {branches}")
    if not merging:
        notes.fact("the recipe says merge: false, so each call is a row")
    title = f"{found.merged} of {turns} extend their history ({what})"
    return notes.check("prefix", "" if notes.problems else title, **found._asdict())


def _cost(found: PrefixSharing) -> str:
    """Report tokens saved by merging and lost by breaks, per rollout."""
    n = max(1, found.rollouts)
    together, apart = found.tokens_merged / n, found.tokens_apart / n
    line = f"{found.calls / n:.3g} calls a rollout; {together:.0f} tokens in rows, {apart:.0f} if none merged"
    return line + (f", about {found.tokens_ideal / n:.0f} if all did" if found.broken else "")


async def two_turns(calls: ProbeAttempt) -> bool:
    """Send a question with a tool and a follow-up. Return whether the policy called the tool."""
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": "What is 3 + 4? Use the tool."}]
    said = await calls.chat(messages, tools=[TOOL], max_tokens=48)
    messages.append(
        {k: v for k, v in said.items() if k in ("role", "content", "tool_calls") and v is not None}
    )
    asked = said.get("tool_calls") or []
    messages += [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in asked]
    if not asked:
        messages.append({"role": "user", "content": "And what is 3 + 5?"})
    await calls.chat(messages, tools=[TOOL], max_tokens=16)
    return bool(asked)


def _length(call: Call) -> int:
    return len(call.prompt_ids or ()) + len(call.response_ids or ())
