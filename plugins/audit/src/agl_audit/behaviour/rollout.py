"""What the policy did in one rollout, and in the rollouts of a step: turns, tool calls, answers, actions.

An *answer* is what the policy wrote in one call, a *turn* a request that it answered, and the *action
sequence* of a rollout all of its answers in their order, texts and tool calls alike. Calls of frozen
policies are no behaviour of the policy.

Invariant: a figure that nothing was recorded for is missing, never 0.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentlightning.credit.eligibility import NOT_LIVE, superseded_calls
from agentlightning.credit.groups import call_order
from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.types import Call, Record
from agentlightning.types.base import Model
from agentlightning.types.failure import FailureTable
from agentlightning.types.record import tool_calls_of

FEW_TASKS = 4
"""With fewer tasks in a step, nothing is said of how much their action sequences have in common."""

FIGURES: Mapping[str, str] = {
    "behaviour/turns": "turns",
    "behaviour/tool_calls": "tool calls",
    "behaviour/tool_failures": "of which failed",
    "behaviour/answer_tokens": "tokens an answer",
    "behaviour/cut": "cut",
    "behaviour/distinct": "distinct",
    "behaviour/distinct_in_group": "distinct in a group",
    "entropy": "entropy",
}
"""Metric of a step → its words."""


class ToolRuns(Model):
    """The tools that ran in a rollout, by their spans."""

    ran: int = 0
    failed: int = 0


class Behaviour(Model):
    """What the policy did in a rollout."""

    turns: int = 0
    tool_calls: int = 0
    """Tool calls in its answers; tools that ran, where these were more (an agent that reads them in a text).
    """
    tool_failures: int | None = None
    """Tools that ended with an error; ``None``: no run of a tool is on record."""
    answers: int = 0
    answer_tokens: int = 0
    """Of all answers."""
    cut: int = 0
    """Answers that ended at their limit of tokens."""
    actions: str = ""
    """Digest of the action sequence; empty: there was no answer."""
    tools_ran: int = 0
    surprise: float = 0.0
    """Sum of the negative logprobs of sampled tokens, in nats."""
    sampled_tokens: int = 0
    """Tokens with a logprob of the policy's own distribution."""


class Seen(Model):
    """A rollout of a step, as far as its behaviour goes."""

    rollout: str
    group: str
    task: str
    reward: float | None
    behaviour: Behaviour


def behaviour_of(record: Record, policies: Collection[str] = (), tools: ToolRuns | None = None) -> Behaviour:
    """Return what the policy did in a rollout. ``policies``: those that are trained; none: all."""
    superseded = superseded_calls(record)
    calls = [
        call
        for call in sorted(record.calls, key=call_order)
        if (not policies or call.policy in policies) and call.call_id not in superseded and _answered(call)
    ]
    runs = tools or ToolRuns()
    asked = sum(len(tool_calls_of(call.response or {})) for call in calls)
    own = [call for call in calls if call.logprobs is not None and call.masked is None]
    return Behaviour(
        turns=len({call.sequence for call in calls}),
        tool_calls=max(asked, runs.ran),
        tool_failures=runs.failed if runs.ran else None,
        tools_ran=runs.ran,
        answers=len(calls),
        answer_tokens=sum(answer_tokens(call) for call in calls),
        cut=sum(call.finish_reason == "length" for call in calls),
        actions=_digest(calls) if calls else "",
        surprise=-math.fsum(value for call in own for value in call.logprobs or () if math.isfinite(value)),
        sampled_tokens=sum(len(call.logprobs or ()) for call in own),
    )


def seen(
    record: Record, policies: Collection[str], tools: ToolRuns | None, failure: FailureTable | None
) -> Seen:
    """Return a finished rollout as its step counts it."""
    rollout = record.rollout
    return Seen(
        rollout=rollout.rollout_id,
        group=rollout.group_id or rollout.rollout_id,
        task=rollout.task_id or rollout.group_id or rollout.rollout_id,
        reward=rollout_reward(record, failure).value,
        behaviour=behaviour_of(record, policies, tools),
    )


def step_metrics(rollouts: Sequence[Seen]) -> dict[str, float]:
    """Return the behaviour of a step as metrics ``behaviour/…``, and beside it the bounds of its rewards and
    the ``entropy`` of the policy, estimated by the tokens that it sampled; a driver that knows it better
    reports its own. Rollouts without an answer have no behaviour.

    ``distinct`` and ``distinct_in_group`` are shares: of a step's rollouts, and in the mean of a group's,
    that differ in their action sequences. ``commonest`` is the share of the rollouts with the commonest one.
    """
    rewards = [one.reward for one in rollouts if one.reward is not None]
    found: dict[str, float] = {}
    if rewards:
        found |= {"reward_min": min(rewards), "reward_max": max(rewards)}
    acted = [one for one in rollouts if one.behaviour.answers]
    if not acted:
        return found
    all_of = [one.behaviour for one in acted]
    answers = sum(one.answers for one in all_of)
    found |= {
        "behaviour/turns": sum(one.turns for one in all_of) / len(acted),
        "behaviour/tool_calls": sum(one.tool_calls for one in all_of) / len(acted),
        "behaviour/answer_tokens": sum(one.answer_tokens for one in all_of) / answers,
        "behaviour/cut": sum(one.cut for one in all_of) / answers,
        "behaviour/distinct": len({one.actions for one in all_of}) / len(acted),
    }
    if ran := sum(one.tools_ran for one in all_of):
        found["behaviour/tool_failures"] = sum(one.tool_failures or 0 for one in all_of) / ran
    if shares := _in_groups(acted):
        found["behaviour/distinct_in_group"] = math.fsum(shares) / len(shares)
    if len({one.task for one in acted}) >= FEW_TASKS:
        commonest = Counter(one.actions for one in all_of).most_common(1)
        found["behaviour/commonest"] = commonest[0][1] / len(acted)
    if sampled := sum(one.sampled_tokens for one in all_of):
        found["entropy"] = math.fsum(one.surprise for one in all_of) / sampled
    return found


def shown_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the behaviour among the metrics of a step, with the words that people read, as far as it is
    known.
    """
    return {word: metrics[name] for name, word in FIGURES.items() if name in metrics}


def answer_tokens(call: Call) -> int:
    """Return the number of tokens of an answer, by its ids where there are any."""
    return (call.completion_tokens or 0) if call.response_ids is None else len(call.response_ids)


def speech(message: Mapping[str, Any]) -> str:
    """Return a message's text and its tool calls as ``name(arguments)``."""
    said = message.get("content") or message.get("text") or ""
    functions = [(tool.get("function"), tool) for tool in tool_calls_of(message)]
    asked = [function if isinstance(function, Mapping) else tool for function, tool in functions]
    tools = [f"{function.get('name')}({function.get('arguments', '')})" for function in asked]
    return " ".join([str(said), *tools]).strip()


def _answered(call: Call) -> bool:
    """Whether the policy answered, or began to."""
    return (call.status == "ok" and call.masked not in NOT_LIVE) or bool(call.response_ids)


def _digest(calls: Sequence[Call]) -> str:
    said = "\x1f".join(" ".join(speech(call.response or {}).split()) for call in calls)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _in_groups(acted: Sequence[Seen]) -> list[float]:
    """Return the share of distinct action sequences of each group of several rollouts."""
    groups: dict[str, list[str]] = {}
    for one in acted:
        groups.setdefault(one.group, []).append(one.behaviour.actions)
    return [len({*actions}) / len(actions) for actions in groups.values() if len(actions) > 1]
