"""A second advantage from calls made in the same state: the step level of GiGPO (arXiv 2505.10978, equations
6 to 8).

Rollouts of one group pass through the same states. The calls of the group that were made in one state are
compared by their returns, ``G_t = r_t + gamma G_(t+1)``:

    A^S = (G - mean(G)) / (std(G) + 1e-6)                   over these calls, each of which counts once

and ``recipe.step_weight * A^S`` is added to the advantage of the episode. ``scale="none"`` divides by
nothing.

A state is the call's tag ``state``, else its prompt. Invariants: calls of different groups, policies or
agents are never compared; a call alone in its state gets 0, and is counted (``states_of_one``), as is one
whose return is missing (``steps_missing``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentlightning.credit.advantage.groups import CreditedCall, StepReturn, agent_of, group_key, grouped
from agentlightning.credit.advantage.spread import mean, nearly_equal, std
from agentlightning.credit.scoring.rules import apply_rule, discounted
from agentlightning.types import Call, Recipe, Record
from agentlightning.types.tokens import as_ids, shared_buffer

STATE = "state"
"""Tag of a call that names the state in which it was made."""


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


def step_advantages(
    credited: Sequence[CreditedCall], recipe: Recipe, group_by: Sequence[str], epsilon: float
) -> dict[str, float]:
    """Return call id → ``step_weight · A^S`` for the calls that are not alone in their state."""
    known = [one for one in credited if one.step is not None and one.step.value is not None]

    def key(one: CreditedCall) -> tuple[str, ...]:
        assert one.step is not None
        return (*group_key(one, group_by), agent_of(one), one.step.state)

    found: dict[str, float] = {}
    for of in grouped(known, key).values():
        if len(of) < 2:
            continue
        returns = [one.step.value for one in of if one.step is not None and one.step.value is not None]
        centre, same = mean(returns), nearly_equal(returns)
        scale = std(returns) + epsilon if recipe.scale == "std" else 1.0
        for one, value in zip(of, returns, strict=True):
            found[one.call_id] = 0.0 if same else recipe.step_weight * (value - centre) / scale
    return found
