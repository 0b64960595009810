"""The attempts that may call now, and the state of each while it runs.

Invariant: the key of a closed attempt is refused, none of its calls is under way, and no state of it is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec

from agentlightning.gateway.errors import RequestRefused, store_failed
from agentlightning.gateway.identity import RequestIdentity
from agentlightning.gateway.prompt_ids import PromptCache
from agentlightning.gateway.settings import CallSection
from agentlightning.keys import Claims, Keys
from agentlightning.log_limit import limited
from agentlightning.semconv import RESAMPLED
from agentlightning.store.base import NotFound, Store
from agentlightning.types import Attempt, AttemptStatus, Mode, Rollout, Tags, merge_tags
from agentlightning.types.select import selector

log = limited(__name__)
T = TypeVar("T")
MAX_LOADED = 10_000
"""Attempts that were read from the store and are kept."""
LIVE_STATUSES = (AttemptStatus.PREPARING, AttemptStatus.RUNNING, AttemptStatus.UNRESPONSIVE)


class AttemptInfo(msgspec.Struct, kw_only=True):
    """The facts about an attempt that the gateway needs; they may be sent between processes."""

    rollout_id: str
    attempt_id: str
    run_id: str = ""
    fence: int = 1
    mode: Mode = "train"
    seed: int | None = None
    """Root of the sampling seeds; ``None``: the engine's own randomness."""
    greedy: bool = False
    """Evaluation at temperature 0 (selected calls, outside of training)."""
    policies: dict[str, str] = {}
    """Name of an agent, role or node, or ``"re:…"`` → policy; the first that matches. Empty: the
    gateway's own."""
    tags: Tags = {}
    """Tags of every call; a call's own tags win."""
    trusted: bool = True
    """Whether its agent may ask not to be trained (``RolloutConfig.trusted``)."""

    @classmethod
    def of(cls, rollout: Rollout, attempt: Attempt, policies: dict[str, str]) -> AttemptInfo:
        """The facts about an attempt of the store. Its rollout may have a map of policies of its own."""
        return cls(
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            run_id=rollout.run_id or "",
            fence=attempt.fence,
            mode=rollout.mode,
            seed=root_seed(rollout, attempt),
            greedy=bool(rollout.metadata.get("greedy", False)),
            policies=_string_map(rollout.metadata.get("policies")) or policies,
            tags=_string_map(rollout.metadata.get("tags")),
            trusted=rollout.config.trusted,
        )


@dataclass(slots=True, eq=False)
class OpenAttempt:
    """One attempt: the state that its calls share, and the calls under way."""

    info: AttemptInfo
    selects: Callable[[Tags], bool]
    store: Store
    sequence: int = 0
    prompts: PromptCache = field(default_factory=PromptCache)
    seeds: RequestSeeds = field(init=False)
    parts: dict[object, Any] = field(default_factory=dict)
    """What APIs keep of it (:meth:`part`)."""
    edits: dict[Any, Any] = field(default_factory=dict)
    """What edits of its calls keep of it."""
    tasks: set[asyncio.Task[object]] = field(default_factory=set)
    """Handlers of its calls."""
    writes: set[asyncio.Future[Any]] = field(default_factory=set)
    """Records being committed, which outlive a handler that is cancelled."""
    closing: bool = False

    def __post_init__(self) -> None:
        self.seeds = RequestSeeds(self.info.seed)

    def part(self, kind: Callable[[OpenAttempt], T]) -> T:
        """What an API keeps of this attempt, made by ``kind`` when it is first asked for."""
        if kind not in self.parts:
            self.parts[kind] = kind(self)
        found: T = self.parts[kind]
        return found

    def next_sequence(self) -> int:
        """Number of the next call, in order of arrival."""
        self.sequence += 1
        return self.sequence - 1


class Admitted(msgspec.Struct, frozen=True):
    """A request that may be served: who makes it, the attempt it belongs to, and its body."""

    caller: RequestIdentity
    attempt: OpenAttempt
    body: dict[str, Any]


class OpenAttempts:
    """The attempts that may call. Those opened elsewhere are read from the store, and :data:`MAX_LOADED` of
    them are kept.
    """

    def __init__(self, store: Store, keys: Keys, calls: CallSection) -> None:
        self._store = store
        self._keys = keys
        self._selects = selector(calls.select)
        self._policies = calls.policies
        self._prompts = PromptCache()
        self._open: dict[str, OpenAttempt] = {}
        self._loaded: dict[str, OpenAttempt] = {}
        self._loading: dict[str, asyncio.Task[OpenAttempt]] = {}
        self._expected: dict[str, AttemptInfo] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._loaded)

    def open(self, info: AttemptInfo) -> str:
        """Let an attempt call, and return its key."""
        if info.attempt_id in self._open:
            raise ValueError(f"attempt {info.attempt_id} is open already; close_attempt() ends it")
        self._open[info.attempt_id] = self._attempt(info)
        return self._keys.mint(info.rollout_id, info.attempt_id, run_id=info.run_id, fence=info.fence)

    def expect(self, info: AttemptInfo) -> None:
        """Take the facts about an attempt that another process has opened, for when its key is first seen."""
        self._expected[info.attempt_id] = info
        if (known := self._loaded.get(info.attempt_id)) is not None:
            known.info = self._completed(info)

    def _completed(self, info: AttemptInfo) -> AttemptInfo:
        """The facts, with the gateway's own policies where they name none."""
        return info if info.policies else msgspec.structs.replace(info, policies=self._policies)

    def _attempt(self, info: AttemptInfo, sequence: int = 0) -> OpenAttempt:
        return OpenAttempt(self._completed(info), self._selects, self._store, sequence, self._prompts)

    async def get(self, claims: Claims) -> OpenAttempt:
        """The attempt of a valid key. Raise :class:`RequestRefused` 409 if it has ended or is unknown."""
        attempt = self._open.get(claims.attempt_id) or self._loaded.get(claims.attempt_id)
        if attempt is None:
            attempt = await self._load_once(claims)
        if attempt.closing or attempt.info.rollout_id != claims.rollout_id:
            raise ended(claims)
        return attempt

    async def close(self, attempt_id: str, grace: float) -> None:
        """Revoke the key, give calls ``grace`` seconds, cancel the others, wait for their records, and forget
        the attempt.
        """
        self._keys.revoke(attempt_id)
        self._expected.pop(attempt_id, None)
        attempt = self._open.get(attempt_id) or self._loaded.get(attempt_id)
        if attempt is None:
            return
        if attempt.tasks and grace > 0:
            await asyncio.wait(attempt.tasks, timeout=grace)
        await _stop(attempt)
        self._open.pop(attempt_id, None)
        self._loaded.pop(attempt_id, None)

    def revoke(self, attempt_id: str) -> None:
        """Revoke the key of an attempt that has ended in the store, stop its other calls, and forget it.

        :meth:`close`, which the runner calls, forgets an attempt that was opened here.
        """
        self._keys.revoke(attempt_id)
        attempt = self._open.get(attempt_id) or self._loaded.pop(attempt_id, None)
        if attempt is None or attempt.closing:
            return
        attempt.closing = True
        for task in attempt.tasks - {asyncio.current_task()}:
            task.cancel()

    async def stop(self) -> None:
        """Stop the calls of every attempt and wait for their records; keys stay as they are."""
        attempts = [*self._open.values(), *self._loaded.values()]
        await asyncio.gather(*(_stop(attempt) for attempt in attempts))

    async def _load_once(self, claims: Claims) -> OpenAttempt:
        task = self._loading.get(claims.attempt_id)
        if task is None:
            task = asyncio.create_task(self._load(claims))
            self._loading[claims.attempt_id] = task
            task.add_done_callback(lambda _: self._loading.pop(claims.attempt_id, None))
        return await asyncio.shield(task)

    async def _load(self, claims: Claims) -> OpenAttempt:
        """Read an attempt that was opened elsewhere from the store."""
        try:
            rollout = await self._store.get_rollout_by_id(claims.rollout_id)
            attempts = await self._store.query_attempts(claims.rollout_id)
            calls = await self._store.query_calls(claims.rollout_id, claims.attempt_id)
        except NotFound:
            raise _unknown(claims) from None
        except Exception as error:
            log.exception("attempt %s: the store could not be asked about it", claims.attempt_id)
            raise store_failed("the store could not be asked about this key's attempt", error) from None
        attempt = next((a for a in attempts if a.attempt_id == claims.attempt_id), None)
        if attempt is None:
            raise _unknown(claims)
        if attempt.status not in LIVE_STATUSES:
            self._keys.revoke(claims.attempt_id)
            raise ended(claims)
        try:  # it may have been closed while the store was read
            self._keys.check(self._keys.mint(claims.rollout_id, claims.attempt_id))
        except RequestRefused:
            raise ended(claims) from None
        told = self._expected.get(claims.attempt_id) or AttemptInfo.of(rollout, attempt, self._policies)
        sequence = 1 + max((c.sequence for c in calls), default=-1)
        found = self._attempt(told, sequence)
        for call in calls:
            if call.choice == 0 and (call.selected or "seed" in call.sampling):  # in order of arrival
                found.seeds.next(branch_of(call.tags), call.request or {}, call.span_id, call.retry)
        self._loaded[claims.attempt_id] = found
        if (surplus := len(self._loaded) - MAX_LOADED) > 0:
            idle = [attempt_id for attempt_id, attempt in self._loaded.items() if not attempt.tasks]
            for attempt_id in idle[:surplus]:  # they would be read again
                del self._loaded[attempt_id]
        return found


def _string_map(value: object) -> dict[str, str]:
    """Metadata of a rollout as a map of strings; empty for anything but a mapping."""
    return merge_tags(value) if isinstance(value, Mapping) else {}


async def _stop(attempt: OpenAttempt) -> None:
    """Cancel the attempt's calls and wait until they are recorded."""
    attempt.closing = True
    while pending := attempt.tasks - {asyncio.current_task()}:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
        attempt.tasks -= pending
    if attempt.writes:
        await asyncio.wait(attempt.writes)


def ended(claims: Claims) -> RequestRefused:
    """The refusal of a call of an attempt that has ended."""
    message = f"attempt {claims.attempt_id} has ended; its calls are no longer recorded or answered"
    return RequestRefused(409, "attempt-ended", message).of(claims)


def _unknown(claims: Claims) -> RequestRefused:
    message = f"the store knows no attempt {claims.attempt_id} of rollout {claims.rollout_id}"
    return RequestRefused(409, "unknown-attempt", message)


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
