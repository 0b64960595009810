"""Imported traces into a store: a run, a rollout for each trace, its calls and rewards.

Invariants: every trace becomes a rollout, was imported before, or is left out with a reason. Calls have no
token ids, so no driver trains them by their tokens (``no-ids`` in the ledger); ``agl chats`` makes chats of
them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentlightning import semconv
from agentlightning.capture.emit.emitters import reward_attributes
from agentlightning.history.importing.trace import ImportedCall, ImportedTrace
from agentlightning.store.base import NotFound, Store
from agentlightning.types import AttemptedRollout, AttemptStatus, Call, Span
from agentlightning.types.rewards import PRIMARY

POLICY = "imported"
"""The policy of imported calls: whoever answered them, no run trains it."""


@dataclass(slots=True)
class Imported:
    """What an import did. ``traces`` = ``rollouts`` + ``known`` + those that were left out."""

    traces: int = 0
    rollouts: int = 0
    known: int = 0
    """Traces that this run had already."""
    calls: int = 0
    rewards: int = 0
    rewarded: int = 0
    """Rollouts with a reward of their own (``reward``)."""
    left_out: Counter[str] = field(default_factory=Counter)

    def summary(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        names = ("traces", "rollouts", "known", "calls", "rewards", "rewarded")
        return {
            **{name: getattr(self, name) for name in names},
            "left_out": dict(sorted(self.left_out.items())),
        }


async def write_traces(
    store: Store, run_id: str, source: str, traces: Iterable[ImportedTrace], reward: str | None = None
) -> Imported:
    """Write the traces of a format (``source``) into a run. ``reward``: the score that is the reward of a
    rollout; by default the one called ``reward``, else the only one.
    """
    done = Imported()
    for trace in traces:
        done.traces += 1
        done.left_out.update(trace.left_out)
        if not trace.calls:
            done.left_out["trace-without-calls"] += 1
            continue
        rollout_id = "im-" + _digest(run_id, source, trace.trace_id)
        try:
            await store.get_rollout_by_id(rollout_id)
            done.known += 1
            continue
        except NotFound:
            pass
        lease = await store.start_rollout(
            trace.task,
            run_id=run_id,
            rollout_id=rollout_id,
            group_id=_digest(run_id, json.dumps(trace.task, sort_keys=True, default=str)),
            metadata={"imported": {"format": source, "trace_id": trace.trace_id}},
        )
        await store.add_calls([_call(lease, place, call) for place, call in enumerate(trace.calls)])
        rewards = _rewards(lease, trace, reward)
        status = AttemptStatus.FAILED if trace.error else AttemptStatus.SUCCEEDED
        why = f"agent-raised: {trace.error}" if trace.error else None
        await store.update_attempt(rollout_id, lease.attempt.attempt_id, status, reason=why, returned=rewards)
        done.rollouts += 1
        done.calls += len(trace.calls)
        done.rewards += len(rewards)
        done.rewarded += any(span.attributes[semconv.REWARD_FINAL] for span in rewards)
    return done


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _call(lease: AttemptedRollout, place: int, call: ImportedCall) -> Call:
    request: dict[str, Any] = {"model": call.model, "messages": call.messages}
    if call.tools:
        request["tools"] = call.tools
    attempt_id = lease.attempt.attempt_id
    return Call(
        call_id=f"{attempt_id}-{place}.0",
        rollout_id=lease.rollout.rollout_id,
        attempt_id=attempt_id,
        sequence=place,
        policy=POLICY,
        model=call.model,
        tags={"agent": call.agent} if call.agent else {},
        request=request,
        response=call.answer,
        sampling=dict(call.sampling),
        finish_reason=call.finish_reason,
        prompt_tokens=call.prompt_tokens,
        completion_tokens=call.completion_tokens,
        status="error" if call.error else "ok",
        error=call.error,
        start_time=call.start,
        end_time=call.end,
    )


def _rewards(lease: AttemptedRollout, trace: ImportedTrace, chosen: str | None) -> list[Span]:
    names = {name for name, _ in trace.rewards}
    main = chosen or (PRIMARY if PRIMARY in names else next(iter(names)) if len(names) == 1 else None)
    return [_reward(lease, name, value, name == main) for name, value in trace.rewards]


def _reward(lease: AttemptedRollout, name: str, value: float, final: bool) -> Span:
    attributes: Mapping[str, Any] = reward_attributes(value, PRIMARY if final else name, final=final)
    return Span(
        rollout_id=lease.rollout.rollout_id,
        attempt_id=lease.attempt.attempt_id,
        name=semconv.REWARD_SPAN,
        attributes={k: v for k, v in attributes.items() if v is not None},
    )
