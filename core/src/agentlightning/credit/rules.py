"""Credit rules: rewards → one number per call.

A rule is a pure function ``(record, recipe) -> {call id: credit}``. The record it sees holds only *live*
calls, in order; a call that will not be trained has ``masked`` set. What it returns for masked calls is
ignored.

- a number: the credit of the call;
- ``None``: the reward is missing; the call is left out, reason ``no-reward``, and no baseline sees it;
- no entry: this rule does not train the call; left out, reason ``not-<rule>`` (``not-last``).

Below, :math:`R` is the final reward of the rollout, :math:`r_i` the own reward of call :math:`i`.

Invariant: a rule that fails on one record affects that rollout alone (:func:`apply_rule`). If it raises, or
returns something that is no credit, the error is logged and the rollout's calls are left out as
``credit-error``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Final

from agentlightning.credit.groups import CreditedCall, StepReturn, agent_of, turns
from agentlightning.credit.rewards import resolve
from agentlightning.log_limit import limited
from agentlightning.types import Call, Recipe, Record
from agentlightning.types.tokens import as_ids, shared_buffer

log = limited(__name__)

Credits = dict[str, float | None]
CreditRule = Callable[[Record, Recipe], Credits]


UNREWARDED: Final = "credits_unrewarded"
"""Attribute of a rule, ``True``: it reads no reward, and credits rollouts that have none, too."""
STATE = "state"
"""Tag of a call that names the state in which it was made."""
CREDIT_ERROR: Final = "credit-error"
LARGEST_CREDIT: Final = 1e100
"""Credits up to it have finite sums and squares over any batch."""


def broadcast(record: Record, recipe: Recipe) -> Credits:
    """Every call gets the final reward: ``c_i = R``. The usual choice for one reward at the end."""
    final = resolve(record).final
    return {call.call_id: final for call in record.calls}


def last(record: Record, recipe: Recipe) -> Credits:
    """Only the last trainable request is trained, with the final reward: ``c_last = R``.

    The others are out (``not-last``). That is not the same as credit 0, which would pull them below a
    positive baseline. If the last request has several choices, each of them is trained.
    """
    final = resolve(record).final
    trainable = [call for call in record.calls if call.masked is None]
    end = max((call.sequence for call in trainable), default=None)
    return {call.call_id: final for call in trainable if call.sequence == end}


def per_call(record: Record, recipe: Recipe) -> Credits:
    """Every call gets its own reward: ``c_i = r_i``; a call without one is out (``no-reward``)."""
    own = resolve(record).calls
    return {call.call_id: own.get(call.call_id) for call in record.calls}


def discounted(record: Record, recipe: Recipe) -> Credits:
    """Rewards to go: ``G_i = r_i + gamma * G_{i+1}``, and ``G_last = r_last + R``.

    Steps are the live requests in order, whoever made them; with several choices in one request the step
    before sees the mean of their returns. With ``R`` alone this is ``gamma ** k * R`` for the call k steps
    before the end. A call without an own reward adds no term. A reward that was emitted and is not finite
    makes every return it enters missing. ``R`` that was never emitted is no term only if some call has an own
    reward; otherwise everything is missing.
    """
    rewards = resolve(record)
    ahead = rewards.final
    if ahead is None and rewards.reason == "none" and rewards.calls:
        ahead = 0.0  # a sum over the calls' own rewards: the rollout's term does not exist
    out: Credits = {}
    gamma = 1.0  # the final reward is added to the last step undiscounted
    for _, group in groupby(reversed(record.calls), key=lambda call: call.sequence):
        step = {call.call_id: _plus(rewards.calls.get(call.call_id, 0.0), gamma, ahead) for call in group}
        out.update(step)
        ahead = _mean(list(step.values()))
        gamma = recipe.gamma
    return out


def per_agent(record: Record, recipe: Recipe) -> Credits:
    """The reward of the call's agent (tag ``agent``) if one was emitted, else the rollout's: ``c_i =
    R_agent(i) or R``.

    An agent's reward that was emitted and is not finite is missing; it does not fall back to the rollout's.
    """
    rewards = resolve(record)
    return {call.call_id: rewards.agents.get(agent_of(call), rewards.final) for call in record.calls}


RULES: Mapping[str, CreditRule] = {
    "broadcast": broadcast,
    "last": last,
    "per_call": per_call,
    "discounted": discounted,
    "per_agent": per_agent,
}
"""The built-in rules by name; plugins hand ``assign`` a mapping with more."""


READS: Mapping[str, frozenset[str]] = {
    "broadcast": frozenset({"rollout"}),
    "last": frozenset({"rollout"}),
    "per_call": frozenset({"calls"}),
    "discounted": frozenset({"calls", "rollout"}),
    "per_agent": frozenset({"agents", "rollout"}),
}
"""Built-in rule → whose rewards it reads: each without one of them gives a call no credit."""


def _plus(own: float | None, gamma: float, ahead: float | None) -> float | None:
    return None if own is None or ahead is None else own + gamma * ahead


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def credit_calls(
    record: Record, reasons: dict[str, str], recipe: Recipe, rule: CreditRule
) -> list[CreditedCall]:
    """Apply the rule to the live calls of a record, and return the trainable ones that have a credit.
    ``reasons``: call id → why it is not trained. A call without a number is added to it: ``no-reward``,
    ``not-<rule>`` if the rule skipped it, or ``credit-error`` if the rule gave no usable answer for the
    rollout.
    """
    credits = apply_rule(rule, record, recipe)
    at, steps = turns(record.calls), step_returns(record, recipe)
    credited: list[CreditedCall] = []
    for call in record.calls:
        if call.call_id in reasons:
            continue
        credit = None if credits is None else credits.get(call.call_id)
        if credits is None:
            reasons[call.call_id] = CREDIT_ERROR
        elif credit is None:
            reasons[call.call_id] = "no-reward" if call.call_id in credits else f"not-{recipe.credit}"
        else:
            step = steps.get(call.call_id)
            credited.append(CreditedCall.of(record.rollout, call, credit, at[call.call_id], step))
    return credited


def apply_rule(rule: CreditRule, record: Record, recipe: Recipe) -> Credits | None:
    """Call id → credit; ``None`` if the rule gives no usable answer."""
    try:
        credits = rule(record, recipe)
        if fault := _problem(credits, record):
            raise ValueError(fault)
        return {call: None if value is None else float(value) for call, value in credits.items()}
    except Exception as error:
        log.warning(
            "credit rule %r has no answer for rollout %s, which is left out as %s: %s: %s",
            recipe.credit,
            record.rollout.rollout_id,
            CREDIT_ERROR,
            type(error).__name__,
            error,
            exc_info=not isinstance(error, ValueError),
        )
        return None


def _problem(credits: object, record: Record) -> str:
    """The problem with an answer; empty if there is none."""
    if not isinstance(credits, Mapping):
        return f"it gave a {type(credits).__name__}, not a mapping from call ids to numbers"
    if unknown := set(credits) - {call.call_id for call in record.calls}:
        return f"it credited calls that it was not shown: {sorted(map(str, unknown))}"
    for call, value in credits.items():
        if value is not None and not math.isfinite(value):
            return f"it gave {value} for call {call!r}; missing is None"
        if value is not None and abs(value) > LARGEST_CREDIT:
            return f"it gave {value:g} for call {call!r}, beyond {LARGEST_CREDIT:g}: no mean of it is finite"
    return ""


def step_returns(record: Record, recipe: Recipe) -> Mapping[str, StepReturn]:
    """Return call id → state and return of the live calls of ``record``; empty without a ``step_weight``."""
    if not recipe.step_weight:
        return {}
    returns = apply_rule(discounted, record, recipe) or {}
    return {call.call_id: StepReturn(state_of(call), returns.get(call.call_id)) for call in record.calls}


def state_of(call: Call) -> str:
    """Return the state in which a call was made: its tag, else a digest of its prompt's token ids."""
    if STATE in call.tags:
        return f"{STATE}={call.tags[STATE]}"
    data, own, _ = shared_buffer(as_ids(call.prompt_ids or ()), call.response_ids or ())
    return f"prompt={data.digest(own).hex()[:16]}"
