"""The over-length policy: a prompt that leaves no room for an answer is refused or cut before inference.

``error`` and ``drop`` refuse it (400 ``context_length_exceeded``); ``truncate`` drops its oldest chatter,
block by block: what is neither a leading system message nor the first or last turn of the user. A tool's
result is in the block of its call. Only the engine knows its tokenizer, so the engine counts (``POST
/tokenize``, as vLLM and agl-local have it), and only where the size in bytes cannot prove that the prompt
fits.

Invariant: a shortened prompt was counted by the engine that answers it.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import msgspec

from agentlightning.gateway.answer import DECODE_ERRORS
from agentlightning.gateway.client import EngineClient
from agentlightning.gateway.errors import TOO_LONG, CallFailure
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.route import Fitted, Upstream
from agentlightning.types.record import tool_calls_of
from agl_gateway.edits.section import RouteSection

log = logging.getLogger(__name__)
SLACK = 4
"""A new cut leaves 1/4 of the context free, so that the next turns need no other."""
_RENDERED = ("tools", "chat_template", "chat_template_kwargs", "documents")
"""Fields besides the messages that a chat template reads."""


class TokenCount(msgspec.Struct):
    """The answer of ``/tokenize``."""

    count: int
    max_model_len: int | None = None


class ContextFitter:
    """Makes prompts fit the context of a route's engine, by its over-length policy."""

    def __init__(
        self, route: Upstream, settings: RouteSection, client: EngineClient, metrics: Metrics
    ) -> None:
        self._route, self._settings, self._client, self._metrics = route, settings, client, metrics
        self.window = settings.max_len
        """Tokens of prompt and answer together, as far as known."""
        self.can_count: bool | None = None
        """Whether the engine counts tokens (``POST /tokenize``); ``None``: not tried yet."""
        self.always_count = False
        """Count every prompt: the engine refused one that should have fitted by its bytes."""

    async def fit(self, body: dict[str, Any], dropped_blocks: dict[bytes, int], api: str) -> Fitted | None:
        """Shorten ``body`` if its prompt leaves no room for an answer; return ``None`` to send it as it is.

        Raise :class:`CallFailure` 400 when the prompt cannot be served, and :class:`EngineUnreachable` when
        the engine does not answer. The engine's own refusal is the only check with ``error`` and ``drop``
        without ``reserve``, and for an engine that cannot count. ``dropped_blocks``: cuts of the attempt's
        chats, kept between turns.
        """
        settings = self._settings
        if settings.over_length != "truncate" and not settings.reserve:
            return None
        if self.can_count is False:
            self._metrics.over_length["unchecked"] += 1
            return None
        window = self.window
        sure = window is not None and upper_bound(body) + _room(settings, body, window) <= window
        if sure and not self.always_count:
            return None
        count = await self.count(body)
        if count is None or (window := self.window) is None:
            self._metrics.over_length["unchecked"] += 1
            return None
        budget = window - _room(settings, body, window)
        if count <= budget:
            return None
        if settings.over_length == "truncate" and api == "chat":
            return await self._cut(body, dropped_blocks, count, budget)
        raise self._too_long(count, window)

    async def _cut(
        self, body: dict[str, Any], dropped_blocks: dict[bytes, int], count: int, budget: int
    ) -> Fitted | None:
        """Drop the oldest chatter of a prompt of ``count`` tokens, until it has at most ``budget``.

        If an earlier turn of the same chat was cut, make the same cut again where it suffices: the turn then
        extends the earlier one, and both are trained in one row. A new cut leaves room for turns to come.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
            return None  # no chat: the engine refuses it with a reason
        view = Window(messages)

        async def tokens_without(n: int) -> int | None:
            return await self.count({**body, "messages": view.without(n)})

        n = min(dropped_blocks.get(view.origin, 0), len(view))
        tokens = await tokens_without(n) if n else count
        if tokens is None or tokens > budget:
            least = await tokens_without(len(view)) if len(view) else count
            if least is None:
                return None  # the template refuses the rest: the engine says that it is too long
            if least > budget:
                raise self._too_long(least, self.window or 0, pinned=True)
            target = max(least, budget - (self.window or 0) // SLACK)
            n, tokens = await _search(tokens_without, view.bytes, (0, count), (len(view), least), target)
        dropped_blocks[view.origin] = n
        edited = {"over_length": "truncate", "dropped": view.dropped(n), "tokens": [count, tokens]}
        return {**body, "messages": view.without(n)}, edited

    async def count(self, body: Mapping[str, Any]) -> int | None:
        """Tokens of the longest prompt of a request; ``None`` if the engine cannot count."""
        counts = [await self._ask(prompt) for prompt in _prompts(self._route.model, body)]
        known = [count for count in counts if count is not None]
        return max(known) if len(known) == len(counts) else None

    async def _ask(self, prompt: dict[str, Any]) -> int | None:
        if "tokens" in prompt:
            return len(prompt["tokens"])
        route, settings = self._route, self._settings
        answer = await self._client.ask(route, "tokenize", msgspec.json.encode(prompt), {}, None)
        if answer.status == 200:
            with suppress(*DECODE_ERRORS):
                found = msgspec.json.decode(answer.body, type=TokenCount)
                self.can_count = True
                if (window := found.max_model_len) is not None:  # ``max_len`` may only lower it
                    self.window = min(window, settings.max_len or window)
                return found.count
        if self.can_count is None and answer.status in (200, 404, 405, 501):
            self.can_count = False
            log.warning(
                "policy %r: its engine has no POST /tokenize, so only the engine's own refusal enforces "
                "over_length=%r and reserve=%d",
                route.policy,
                settings.over_length,
                settings.reserve,
            )
        return None

    def _too_long(self, count: int, window: int, pinned: bool = False) -> CallFailure:
        stays = "the part of the prompt that must stay (system, first and last turn)"
        part, reserve = stays if pinned else "the prompt", self._settings.reserve
        kept = f", of which {reserve} are reserved for the answer" if reserve else ""
        message = f"This model's maximum context length is {window} tokens{kept}; {part} has {count}."
        return CallFailure(400, TOO_LONG, message, retry=False, recorded_as="over-length")


async def _search(
    tokens_without: Callable[[int], Awaitable[int | None]],
    saved: Sequence[int],
    low: tuple[int, int],
    high: tuple[int, int],
    target: int,
) -> tuple[int, int]:
    """The fewest blocks to drop for ``target`` tokens, and the tokens then.

    ``low`` and ``high`` are known pairs (blocks, tokens): too many tokens, and few enough. ``saved``: bytes
    that dropping 0, 1, 2, … blocks saves; interpolation by them takes a handful of counts.
    """
    while high[0] - low[0] > 1:
        (a, tokens), (b, fewer) = low, high
        share = (tokens - target) / max(1, tokens - fewer)
        guess = bisect_left(saved, saved[a] + share * (saved[b] - saved[a]), a, b)
        guess = min(max(guess, a + 1), b - 1)
        counted = await tokens_without(guess)
        if counted is not None and counted <= target:
            high = guess, counted
        else:
            low = guess, counted or tokens
    return high


def _prompts(model: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One ``/tokenize`` body for each prompt of a request; ``tokens`` where the prompt is ids already."""
    head = {"model": model}
    if "prompt" not in body:
        more = {name: body[name] for name in _RENDERED if body.get(name) is not None}
        return [{**head, "messages": body.get("messages"), "add_generation_prompt": True, **more}]
    prompt = body.get("prompt")
    many = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    return [{"tokens": one} if isinstance(one, list) else {**head, "prompt": one} for one in many]


def _room(settings: RouteSection, body: Mapping[str, Any], window: int) -> int:
    """Tokens to keep for the answer: with a cut, as many as the agent's limit, up to half of the context."""
    if settings.over_length != "truncate":
        return max(settings.reserve, 1)
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    wanted = asked if isinstance(asked, int) else 0
    return max(1, min(max(settings.reserve, wanted), window // 2))


Message = Mapping[str, Any]
SYSTEM = ("system", "developer")
RESULT = ("tool", "function")
FRAME = 64
"""Bytes allowed for the markup that a template puts around one message."""
PREAMBLE = 2_048
"""Bytes allowed for a template's own text: a default system message, instructions for tool calls."""
_SPOKEN = ("messages", "prompt")
_LISTED = ("tools", "functions", "documents", "chat_template_kwargs", "chat_template")


def upper_bound(request: Mapping[str, Any]) -> int:
    """An upper bound on the tokens of a request's prompt, without a tokenizer.

    A token is at least one byte of the rendered text. That text is no longer than the messages' JSON (whose
    keys and quotes outweigh a template's markup) with room for frames and preamble; tools count twice,
    because templates indent them.
    """
    spoken = sum(len(msgspec.json.encode(request[name])) for name in _SPOKEN if request.get(name))
    listed = sum(len(msgspec.json.encode(request[name])) for name in _LISTED if request.get(name))
    messages = request.get("messages")
    frames = FRAME * len(messages) if isinstance(messages, list) else 0
    return spoken + 2 * listed + frames + PREAMBLE


def blocks(messages: Sequence[Message]) -> list[tuple[int, int]]:
    """``[start, end)`` of each block, in order; a tool's result is in the block of its call."""
    found: list[tuple[int, int]] = []
    calls: dict[str, int] = {}
    for i, message in enumerate(messages):
        start = i
        if message.get("role") in RESULT and i:
            start = calls.get(str(message.get("tool_call_id")), i - 1)
        while found and found[-1][1] > start:
            start = min(start, found.pop()[0])
        found.append((start, i + 1))
        for call in tool_calls_of(message):
            if call.get("id"):
                calls[str(call["id"])] = i
    return found


class Window:
    """A conversation whose chatter can be dropped, oldest first, block by block."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        pinned = _pinned(messages)
        every = blocks(messages)
        self._chatter = [b for b in every[:-1] if pinned.isdisjoint(range(*b))]
        sizes = [len(msgspec.json.encode(messages[slice(*b)])) for b in self._chatter]
        self.bytes = [0, *accumulate(sizes)]
        """Bytes of JSON that dropping 0, 1, 2, … blocks saves."""

    def __len__(self) -> int:
        """Number of blocks that may be dropped."""
        return len(self._chatter)

    @property
    def origin(self) -> bytes:
        """Digest of the chat's beginning, up to its first chatter: later turns of the chat share it."""
        end = self._chatter[0][1] if self._chatter else 0
        return hashlib.blake2b(msgspec.json.encode(self.messages[:end]), digest_size=16).digest()

    def without(self, n: int) -> list[Message]:
        """The messages without the ``n`` oldest blocks of chatter."""
        dropped = {i for b in self._chatter[:n] for i in range(*b)}
        return [m for i, m in enumerate(self.messages) if i not in dropped]

    def dropped(self, n: int) -> list[list[int]]:
        """Ranges ``[start, end)`` of the messages in the ``n`` oldest blocks, joined where they touch."""
        out: list[list[int]] = []
        for start, end in self._chatter[:n]:
            if out and out[-1][1] == start:
                out[-1][1] = end
            else:
                out.append([start, end])
        return out


def _pinned(messages: Sequence[Message]) -> set[int]:
    """Indices of the leading system messages, and of the first and the last user message."""
    head = 0
    while head < len(messages) and messages[head].get("role") in SYSTEM:
        head += 1
    users = [i for i, m in enumerate(messages) if m.get("role") == "user"]
    return {*range(head), *users[:1], *users[-1:]}
