"""What an importer reads from a file: traces with their model calls and rewards.

A trace becomes one rollout. Its calls have messages and answers, and no token ids: tools that trace agents do
not record them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""A message of the chat completions API."""


class UnreadableTrace(ValueError):
    """A file, or a trace in it, that is not of the format; the message says where and what is missing."""


@dataclass(slots=True)
class ImportedCall:
    """One model call: ``messages`` and the answer, as the chat completions API has them."""

    messages: list[Message]
    answer: Message | None
    """``None`` if the call failed."""
    model: str = ""
    agent: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    start: float = 0.0
    end: float = 0.0
    """Seconds since 1970."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    error: str | None = None


@dataclass(slots=True)
class ImportedTrace:
    """One run of an agent. ``task`` is its input: that of the root, else the first user message."""

    trace_id: str
    task: Any = None
    calls: list[ImportedCall] = field(default_factory=list)
    rewards: list[tuple[str, float]] = field(default_factory=list)
    """Scores and feedback by name."""
    error: str | None = None
    """What the root failed with."""
    left_out: Counter[str] = field(default_factory=Counter)
    """What of the trace was not taken, by reason."""

    def finished(self) -> ImportedTrace:
        """Sort the calls by time, and take the first user message as the task where the root has no input."""
        self.calls.sort(key=lambda call: call.start)
        if self.task is None:
            asked = [m for call in self.calls[:1] for m in call.messages if m.get("role") == "user"]
            self.task = asked[0].get("content") if asked else None
        return self


def number(value: Any) -> float | None:
    """Return a finite number, also if it is given as text or as a truth value; else ``None``."""
    if isinstance(value, bool | int | float | str):
        try:
            found = float(value)
        except (ValueError, OverflowError):
            return None
        return found if found - found == 0 else None
    return None


def count(value: Any) -> int | None:
    """Return a count of tokens, ``None`` where there is none."""
    found = number(value)
    return None if found is None or found < 0 else int(found)


def text_of(content: Any) -> Any:
    """Return the content of a message: its text, or its parts where one is not text."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    parts = [
        part if isinstance(part, str) else part.get("text") or part.get("content") for part in content if part
    ]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else list(content)
