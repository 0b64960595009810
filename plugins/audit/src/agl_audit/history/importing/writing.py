"""Imported traces into a store: a run, a rollout for each trace, its calls and rewards.

Invariants: a rollout is written as a whole or not at all. Every trace becomes a rollout, was imported before,
or is left out with a reason. Calls have no token ids, so no driver trains them by their tokens (``no-ids`` in
the ledger); ``agl chats`` makes chats of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentlightning import semconv
from agentlightning.capture.emit import reward_attributes
from agentlightning.capture.records import LARGEST_INT, utf8_text, validated
from agentlightning.store import codec
from agentlightning.store.base import NotFound, Store
from agentlightning.store.bounds import check_fields
from agentlightning.types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Call,
    Rollout,
    RolloutStatus,
    Span,
    UsageError,
    new_id,
)
from agentlightning.types.record import PRIMARY
from agl_audit.history.importing.trace import ImportedCall, ImportedTrace

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
        if await _is_known(store, rollout_id, trace):
            done.known += 1
            continue
        rollout = Rollout(
            rollout_id=rollout_id,
            input=trace.task,
            run_id=run_id,
            group_id=_digest(run_id, json.dumps(trace.task, sort_keys=True, default=str)),
            metadata={"imported": {"format": source, "trace_id": trace.trace_id}},
        )
        rewards = await _write(store, rollout, trace, reward)
        done.rollouts += 1
        done.calls += len(trace.calls)
        done.rewards += len(rewards)
        done.rewarded += any(span.attributes[semconv.REWARD_FINAL] for span in rewards)
    return done


async def _is_known(store: Store, rollout_id: str, trace: ImportedTrace) -> bool:
    try:
        known = await store.get_rollout_by_id(rollout_id)
    except NotFound:
        return False
    if known.status not in (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED):
        raise UsageError(
            f"trace {trace.trace_id[:80]!a} was imported in part by an earlier version "
            f"(rollout {rollout_id}): import into another run"
        )
    return True


async def _write(store: Store, rollout: Rollout, trace: ImportedTrace, reward: str | None) -> list[Span]:
    """Write one rollout with its attempt, calls and rewards in one transaction; return the rewards."""
    lease = AttemptedRollout(
        rollout=rollout, attempt=Attempt(attempt_id=new_id("at"), rollout_id=rollout.rollout_id)
    )
    rewards, error = _rewards(lease, trace, reward), trace.error
    made = {"run_id": rollout.run_id, "group_id": rollout.group_id, "metadata": rollout.metadata}
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
    end = {
        "status": AttemptStatus.FAILED if error else AttemptStatus.SUCCEEDED,
        "reason": f"agent-raised: {error}" if error else None,
    }
    calls = [_call(lease, place, call) for place, call in enumerate(trace.calls)]
    parts: list[tuple[str, dict[str, Any]]] = [
        ("start_rollout", {"input": rollout.input, **ids, **made}),
        ("add_calls", {"calls": calls}),
        ("update_attempt", {**ids, **end, "returned": rewards}),
    ]
    batch = getattr(store, "batch")  # noqa: B009 - stores of other plugins may do without
    for found in await batch(parts):
        if isinstance(found, Exception):
            raise found
    return rewards


def check_trace(trace: ImportedTrace) -> None:
    """Raise ``ValueError``, which names the value, for a trace that would not be stored as it is."""
    lease = AttemptedRollout(
        rollout=Rollout(rollout_id="im", input=trace.task), attempt=Attempt(attempt_id="at", rollout_id="im")
    )
    codec.pack_input(lease.rollout)
    _check_text(trace.trace_id, "the trace's id")
    _check_text(trace.error, "the trace's error")
    for place, given in enumerate(trace.calls):
        call, where = _call(lease, place, given), f"call {place + 1}"
        for name in ("model", "finish_reason", "error"):
            _check_text(getattr(call, name), f"{where}: its {name}")
        _check_text(call.tags.get("agent"), f"{where}: its agent")
        check_fields(call, f"{where}: ")
        for name in ("prompt_tokens", "completion_tokens"):
            if (getattr(call, name) or 0) > LARGEST_INT:
                raise ValueError(f"{where}: {name} is {getattr(call, name):.3g}, more than a call can have")
        for name in ("start_time", "end_time"):
            if not abs(getattr(call, name)) <= _LATEST:
                raise ValueError(f"{where}: {name} is {getattr(call, name)}, no time")
        codec.pack(codec.call_body(call))
    for span in _rewards(lease, trace, None):
        validated(span)


_LATEST = 1e11
"""Seconds since 1970: some three thousand years."""


def _check_text(value: Any, what: str) -> None:
    if value is not None and (not isinstance(value, str) or utf8_text(value) != value):
        raise ValueError(f"{what} is {value!a:.80}, not a text")


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
