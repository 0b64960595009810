"""Sampling seeds: the same request of the same rollout gets the same seed, whatever the order of arrival."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from agentlightning.semconv import RESAMPLED
from agentlightning.types import Attempt, Rollout, Tags


def branch_of(tags: Tags) -> str:
    """The name of the sequence of calls that a call belongs to: its tag ``lane``, else its agent."""
    return tags.get("lane") or tags.get("agent", "")


def root_seed(rollout: Rollout, attempt: Attempt) -> int | None:
    """Root of an attempt's sampling seeds: the rollout's seed, so that an attempt after an interrupted one
    gets the same tokens. After a failure of the agent, which they would repeat, it is another number.
    """
    failed = attempt.metadata.get(RESAMPLED, 0)
    return rollout.seed if rollout.seed is None or not failed else _derived(rollout.seed, RESAMPLED, failed)


class RequestSeeds:
    """The seeds of an attempt's requests. ``root``: ``None`` leaves sampling to the engine's randomness."""

    __slots__ = ("_root", "_spans")

    def __init__(self, root: int | None) -> None:
        self._root = root
        self._spans: dict[tuple[str, bytes], list[str | None]] = {}
        """Branch and content → the callers' spans of requests that got a seed, in order of arrival."""

    def next(
        self, branch: str, body: Mapping[str, Any], span: str | None = None, retry: int = 0
    ) -> int | None:
        """Seed of the request ``body``; a retry gets the seed of the request that it repeats.

        A function of the branch, of the request's content, and of how often the branch has sent that content:
        neither the order in which parallel calls happen to arrive nor a failure on the way changes a seed.
        Only parallel calls of one branch with the same content may swap their seeds, hence their answers.
        ``span``: the caller's, which a request and its retries have in common.
        """
        if self._root is None:
            return None
        content = content_digest(body)
        spans = self._spans.setdefault((branch, content), [])
        if retry and span in spans:
            index = max(i for i, known in enumerate(spans) if known == span)
        else:
            index = len(spans)
            spans.append(span)
        return derive_seed(self._root, branch, content, index)


_CONTENT = frozenset({
    "messages", "prompt", "suffix", "tools", "functions", "tool_choice", "response_format", "guided_choice",
    "structured_outputs", "stop", "n", "max_tokens", "max_completion_tokens",
})  # fmt: skip
"""Request fields on which the answer depends."""


def content_digest(body: Mapping[str, Any]) -> bytes:
    """Digest of the fields on which the answer depends, without the ids of messages and tool calls: engines
    and frameworks draw these at random, and no prompt should hold them.
    """
    asked = {name: value for name, value in body.items() if name in _CONTENT and value is not None}
    messages = asked.get("messages")
    if isinstance(messages, list):
        asked["messages"] = [_without_ids(message) for message in messages]
    return blake2b(msgspec.json.encode(asked, order="sorted"), digest_size=16).digest()


def _without_ids(message: Any) -> Any:
    """A message without its id and those of its tool calls."""
    if not isinstance(message, dict) or message.keys().isdisjoint(("id", "tool_call_id", "tool_calls")):
        return message
    kept = {name: value for name, value in message.items() if name not in ("id", "tool_call_id")}
    calls = kept.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [
            {k: v for k, v in call.items() if k != "id"} if isinstance(call, dict) else call for call in calls
        ]
    return kept


def derive_seed(root: int, branch: str, content: bytes, index: int) -> int:
    """Seed of one request: 63 bits of sha256 over (rollout seed, branch, content, index among the branch's
    requests of that content).
    """
    return _derived(root, branch, content.hex(), index)


def _derived(*parts: object) -> int:
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
