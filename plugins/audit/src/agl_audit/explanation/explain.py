"""Explain a rollout, a call or a token: plain JSON, from which the terminal's panels are drawn.

Built from the store and credit alone; the text of tokens and their logprobs under the present policy come
from the driver's inspector, if it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentlightning import semconv
from agentlightning.credit.baselines import Advantage
from agentlightning.credit.eligibility import weighed_calls
from agentlightning.credit.forest import build_forest
from agentlightning.credit.rewards import attach_rewards, defect
from agentlightning.credit.rollout_reward import failure_of, rollout_reward
from agentlightning.credit.verdicts import verdicts
from agentlightning.types import Attempt, Call, Record, Reward
from agentlightning.types.failure import FAILURE_KINDS
from agentlightning.types.record import by_agent_beside_judge, effective_reward
from agentlightning.types.select import caller_name
from agl_audit.behaviour.rollout import speech
from agl_audit.explanation.advantage import REASONS, find_segment, group_values, weight_share
from agl_audit.explanation.recomputed_step import RecomputedStep, recompute_step
from agl_audit.explanation.token import of_token
from agl_audit.run import OpenRun
from agl_audit.targets import Target

_SAME = (semconv.EVALUATION_NAME, semconv.EVALUATION_SCORE)
"""Attributes of a reward that repeat its name and value."""
_TAIL = 4
"""Number of a request's messages that are shown."""


async def explain(run: OpenRun, target: Target, policy: Path | None = None) -> dict[str, Any]:
    """Return the explanation of ``target``. ``policy``: a folder to score tokens with, instead of the run's
    newest.
    """
    rollout_id = target.rollout.rollout_id
    step = await recompute_step(run, target.rollout)
    out = _rollout(run, step, await run.store.query_attempts(rollout_id))
    if target.call is None:
        calls = await run.store.query_calls(rollout_id, None)
        return {"what": "rollout", **out, "calls": _calls(run, step, calls)}
    calls = await run.store.query_calls(rollout_id, target.attempt)
    call = next(c for c in calls if c.call_id == target.call)
    out |= {"call": _call(step, call), **_credit(run, step, call.call_id)}
    if target.token is None:
        return {"what": "call", **out}
    return {"what": "token", **out, "token": await of_token(run, step, call, target.token, policy)}


# --------------------------------------------------------------------------------------------- the rollout
def _rollout(run: OpenRun, step: RecomputedStep, attempts: Sequence[Attempt]) -> dict[str, Any]:
    r = step.record.rollout
    ledgers = step.batch.ledgers if step.batch else []
    return {
        "run": run.run_id,
        "rollout": {
            "id": r.rollout_id, "task": r.task_id, "group": r.group_id, "sample": r.sample, "mode": r.mode,
            "status": str(r.status), "reason": r.reason, "seed": r.seed, "input": r.input,
        },
        "step": {
            "step": step.fingerprint.step if step.fingerprint else None, "version": step.versions,
            "as_trained": step.as_trained, "note": step.note,
        },
        "attempts": [
            {"id": a.attempt_id, "status": str(a.status), "reason": a.reason,
             "seconds": round(a.end_time - a.start_time, 3) if a.end_time else None}
            for a in attempts
        ],
        "failure": _failure(run, step.record),
        "rewards": rewards(step.record),
        "group": _group(run, step),
        "ledger": next((x.model_dump() for x in ledgers if x.rollout_id == r.rollout_id), None),
        "rows": _rows(step),
    }  # fmt: skip


def _failure(run: OpenRun, record: Record) -> dict[str, Any] | None:
    """The kind of failure, and its reward by the run's table."""
    earned = rollout_reward(record, run.failure_table)
    if (kind := earned.failure) is None:
        return None
    return {"kind": kind, "text": FAILURE_KINDS.get(kind, kind), "reward": earned.value}


def _group(run: OpenRun, step: RecomputedStep) -> list[dict[str, Any]]:
    """The rollouts of the same group and their rewards; a failed one has the table's reward."""
    mine = step.record.rollout
    out = []
    for record in step.records:
        rollout = record.rollout
        if mine.group_id is not None and rollout.group_id == mine.group_id:
            earned = rollout_reward(record, run.failure_table)
            told = {"reward": earned.value, "failure": earned.failure}
            out.append({"rollout": rollout.rollout_id, **told, "this": rollout.rollout_id == mine.rollout_id})
    return out


def rewards(record: Record) -> list[dict[str, Any]]:
    """Return every emitted reward with its target and, if it does not count, the reason (``unused``)."""
    by_target, _ = attach_rewards(record)
    attached = {id(reward) for emitted in by_target.values() for reward in emitted}
    counting = {id(effective_reward(emitted)) for emitted in by_target.values()}
    ignored = {id(reward) for reward in by_agent_beside_judge(record)}
    trains = record.rollout.status.final and record.rollout.mode == "train"
    failed = trains and failure_of(record) not in (None, "no-reward")
    out = []
    for r in record.rewards:
        unused = ""
        if failed:
            unused = "nothing that a failed rollout emits counts"
        elif id(r) in ignored:
            unused = "the agent gave it to itself beside a judge, and is not trusted (agent.trusted)"
        elif id(r) not in attached:
            unused = "no such call is on record"
        elif id(r) not in counting:
            unused = "another one of the same counts"
            if not r.returned and any(one.returned and _of(one) == _of(r) for one in record.rewards):
                unused = "the agent returned another one, which counts"
        out.append(
            {
                "value": None if defect(r.value) else r.value,
                "defect": defect(r.value),
                "name": r.name,
                "of": _of(r),
                "counts": not unused,
                "unused": unused,
                "attributes": {k: v for k, v in r.attributes.items() if k not in _SAME},
            }
        )
    return out


def _of(reward: Reward) -> str:
    if reward.call_id is not None:
        return f"call {reward.call_id}"
    if reward.span_id is not None:
        return f"the call of span {reward.span_id}"
    if reward.agent is not None:
        return f"agent {reward.agent}"
    return "the rollout" if reward.final else "nothing"


def _rows(step: RecomputedStep) -> list[dict[str, Any]]:
    mine = step.record.rollout.rollout_id
    return [
        {
            "id": row.row_id, "policy": row.policy, "staleness": row.metadata.get("staleness"),
            "tokens": len(row.token_ids), "trained": row.trained_tokens,
            "calls": [s.call_id for s in row.segments if s.trained],
            "context": [s.call_id for s in row.segments if not s.trained],
        }
        for row in (step.batch.rows if step.batch else ())
        if row.rollout_id == mine
    ]  # fmt: skip


def _calls(run: OpenRun, step: RecomputedStep, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """The table of a rollout's calls: caller, length, verdict and training."""
    judged = verdicts(step.record)
    out = []
    for call in calls:
        verdict = judged.get(call.call_id)
        credit = _credit(run, step, call.call_id)
        out.append(
            {
                **_identity(call),
                "agent": caller_name(call.tags),
                "verdict": verdict.kind if verdict else None,
                "row": credit["row"] and credit["row"]["id"],
                "advantage": credit["advantage"] and credit["advantage"]["value"],
                "left_out": credit["left_out"],
            }
        )
    return out


# ------------------------------------------------------------------------------------------------ the call
def _identity(call: Call) -> dict[str, Any]:
    """The facts of a call that its line in the table and its own explanation share."""
    return {
        "id": call.call_id,
        "policy": call.policy,
        "version": call.policy_version,
        "prompt_tokens": None if call.prompt_ids is None else len(call.prompt_ids),
        "response_tokens": None if call.response_ids is None else len(call.response_ids),
        "text": speech(call.response or {}),
    }


def _call(step: RecomputedStep, call: Call) -> dict[str, Any]:
    verdict = verdicts(step.record).get(call.call_id)
    same = ("tags", "model", "status", "error", "finish_reason", "sampling", "asked", "edited")
    return {
        **_identity(call),
        **{name: getattr(call, name) for name in same},
        "attempt": call.attempt_id,
        "agent": call.tags.get("agent"),
        "verdict": verdict and verdict._asdict(),
        "milliseconds": round(1000 * (call.end_time - call.start_time), 1),
        "messages": _tail(call),
    }


def _credit(run: OpenRun, step: RecomputedStep, call_id: str) -> dict[str, Any]:
    """Credit, baseline, advantage and weight of a call, or why it has none."""
    out: dict[str, Any] = dict.fromkeys(
        ("credit", "baseline", "advantage", "weight", "row", "merge", "left_out")
    )
    if step.batch is None:
        return {**out, "left_out": {"reason": "not-credited", "text": step.note}}
    recipe = run.recipe
    if account := step.advantages.get(call_id):
        out["credit"] = {"rule": recipe.credit, "gamma": recipe.gamma, "value": account.credit}
        out["baseline"] = _baseline(step, account, recipe.baseline)
        out["advantage"] = {
            "value": account.value, "scale": account.scale, "scaled_by": recipe.scale,
            "step": account.step, "step_reason": account.step_reason, "zero_reason": account.zero_reason,
            "critic": recipe.critic,
        }  # fmt: skip
    found = find_segment(step.batch.rows, call_id)
    if found is None:
        return {**out, "left_out": _left_out(step, call_id)}
    row, segment = found
    if step.edits:
        out["advantage"] = {**(out["advantage"] or {}), "value": segment.advantage, "edits": [*step.edits]}
    trained = {c.call_id for r in step.batch.rows for c in r.segments if c.trained}
    mine = [c for c in step.record.calls if c.call_id in trained]
    weighed = weighed_calls(mine, recipe)
    forest = build_forest(mine, merge=recipe.merge, temperature=recipe.temperature, weighed=weighed)
    link = forest.links[call_id]
    return {
        **out,
        "weight": {"value": row.weights[segment.start], "aggregation": recipe.loss_aggregation,
                   **weight_share(step.batch.rows, recipe, row, segment)},
        "row": {"id": row.row_id, "start": segment.start, "end": segment.end, "tokens": len(row.token_ids),
                "staleness": row.metadata.get("staleness")},
        "merge": {**link._asdict(), "text": link.text()},
    }  # fmt: skip


def _baseline(step: RecomputedStep, account: Advantage, name: str) -> dict[str, Any]:
    mine = step.record.rollout.rollout_id
    members = group_values(step.records, step.advantages, account.group)
    return {
        "name": name,
        "value": account.baseline,
        "group": list(account.group),
        "spread": account.spread,
        "pool": list(account.pool),
        "members": [
            {"rollout": rollout, "value": value, "this": rollout == mine}
            for rollout, value in members.items()
        ],
    }


def _left_out(step: RecomputedStep, call_id: str) -> dict[str, str]:
    mine = {call.call_id for call in step.record.calls}
    reason = step.out.get(call_id, "" if call_id in mine else "other-attempt")
    plain = REASONS.get(reason)
    if plain is None:
        plain = "the credit rule passed it over" if reason.startswith("not-") else "the gateway masked it"
        if (editor := reason.partition("-")[0]) in step.edits:
            plain = f"{editor!r} edited the batch of the step, and took it out"
    return {"reason": reason, "text": plain}


# ------------------------------------------------------------------------------------------------- helpers
def _tail(call: Call) -> list[dict[str, str]]:
    """The last messages of the request."""
    found = (call.request or {}).get("messages")
    if not isinstance(found, list):
        prompt = (call.request or {}).get("prompt")
        return [] if prompt is None else [{"role": "prompt", "content": str(prompt)}]
    return [
        {"role": str(m.get("role", "")), "content": speech(m)} for m in found[-_TAIL:] if isinstance(m, dict)
    ]
