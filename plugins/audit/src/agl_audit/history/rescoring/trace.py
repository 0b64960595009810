"""A stored rollout as a reward function gets it.

The function has the signature of any reward function of ours, ``(task, result)``: ``result`` has the fields
of agl-programs' ``CommandResult``, as far as a store keeps them, and what only a store knows. Of a program's
output it keeps the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentlightning import semconv
from agentlightning.credit.eligibility import NOT_LIVE, superseded_calls
from agentlightning.credit.groups import call_order
from agentlightning.types import Call, Record, Reward, Span

_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One model call of a stored rollout, as one of agl-programs' ``ModelCall``."""

    path: str
    """The route, e.g. ``/v1/chat/completions``."""
    request: Any
    """The request's JSON."""
    status: int
    """HTTP status of the answer."""
    answer: Any
    """A chat completion with the one choice that the call is."""
    call_id: str
    agent: str
    """Who made it; empty: not known."""
    text: str
    """The text of the answer; empty for one that is tool calls alone."""
    tags: dict[str, str]


@dataclass(frozen=True, slots=True)
class RolloutTrace:
    """What a store keeps of a rollout's last attempt."""

    rollout_id: str
    task_id: str | None
    mode: str
    calls: tuple[TracedCall, ...]
    """The calls that the agent went on from, in their order."""
    answer: str
    """The text of the last call's answer; empty without one."""
    spans: tuple[Span, ...]
    """All spans: agents, tools, messages, operations."""
    rewards: tuple[Reward, ...]
    """The rewards that the rollout ended with."""
    metadata: dict[str, Any]
    seconds: float | None
    """Time from the attempt's start to its end."""
    exit_code: int | None = None
    """Of an agent that is a command; ``None``: it is none."""
    stdout: str = ""
    """The end of a command's standard output, as its trace keeps it."""
    stderr: str = ""


def make_trace(record: Record, spans: Sequence[Span] = ()) -> RolloutTrace:
    """Return the trace of a record. ``spans``: those of its last attempt."""
    attempt, rollout = record.attempt, record.rollout
    calls = tuple(_call(call) for call in live_calls(record))
    command = next((span.attributes for span in spans if span.name == semconv.COMMAND_SPAN), {})
    ended = attempt is not None and attempt.end_time is not None
    return RolloutTrace(
        rollout_id=rollout.rollout_id,
        task_id=rollout.task_id,
        mode=rollout.mode,
        calls=calls,
        answer=calls[-1].text if calls else "",
        spans=tuple(spans),
        rewards=tuple(record.rewards),
        metadata=dict(rollout.metadata),
        seconds=attempt.end_time - attempt.start_time if attempt and ended and attempt.end_time else None,
        exit_code=command.get("process.exit.code"),
        stdout=str(command.get("agl.command.stdout", "")),
        stderr=str(command.get("agl.command.stderr", "")),
    )


def live_calls(record: Record) -> list[Call]:
    """Return the calls that the agent went on from, in order of request: not those that the SDK sent again,
    failed, or were cancelled.
    """
    again = superseded_calls(record)
    live = (call for call in record.calls if call.status not in NOT_LIVE and call.call_id not in again)
    return sorted(live, key=call_order)


def _call(call: Call) -> TracedCall:
    response = call.response or {}  # a message, or of the API of completions its text
    plain = call.api == "completions"
    text = response.get("text" if plain else "content")
    choice: dict[str, Any] = {"index": call.choice, "finish_reason": call.finish_reason}
    choice |= response if plain else {"message": response}
    return TracedCall(
        path=_PATHS.get(call.api, ""),
        request=call.request,
        status=200,
        answer={
            "id": call.response_id,
            "model": call.model,
            "choices": [choice],
            "usage": {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.completion_tokens},
        },
        call_id=call.call_id,
        agent=call.tags.get("agent", ""),
        text=text if isinstance(text, str) else _parts_text(text),
        tags=dict(call.tags),
    )


def _parts_text(content: Any) -> str:
    """Return the text of a content that is a list of parts."""
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
