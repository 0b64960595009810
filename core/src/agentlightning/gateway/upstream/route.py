"""The engines behind the policies, and the choice of the one that serves a call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from agentlightning.gateway.errors import RequestRefused
from agentlightning.gateway.upstream.endpoints import Endpoints
from agentlightning.types.tokens import as_ids

SECRET_LENGTH = 12
"""Characters of a key from which it counts as a secret; shorter ones are placeholders such as ``EMPTY``."""
OverLengthPolicy = Literal["error", "drop", "truncate"]
Reasoning = Literal["keep", "split", "split-opened"]


@dataclass(slots=True, kw_only=True)
class Upstream:
    """A policy's engine: an OpenAI-compatible base URL (ending in ``/v1``) and the model name it knows.
    ``replicas``: further URLs that serve the same; each attempt keeps to one endpoint.

    ``version`` gives the served version of the policy, for engines whose answers do not. ``stream_ids``:
    whether its streams carry every token id (``None``: learned from the streams).
    """

    url: str
    model: str
    replicas: Sequence[str] = ()
    policy: str = "default"
    api_key: str | None = field(default=None, repr=False)
    trainable: bool = True
    seeded: bool = False
    """Whether calls that are not trained get a seed too, where the agent gives none: for engines whose
    answers must be reproducible.
    """
    version: Callable[[], int | None] | None = None
    stream_ids: bool | None = None
    over_length: OverLengthPolicy = "error"
    """How to treat a prompt that leaves no room for an answer. ``error``: the agent gets 400
    ``context_length_exceeded``. ``drop``: the same, and its rollout is left out of training. ``truncate``:
    its oldest chatter is dropped until it fits.
    """
    reserve: int = 0
    """Tokens of the context that are kept free for an answer. 0: one, by the engine's own check."""
    max_len: int | None = None
    """Tokens of prompt and answer together, if fewer than the engine's ``max_model_len``."""
    reasoning: Reasoning = "keep"
    """``split``: ``<think>…</think>`` goes from the content of chat answers to ``reasoning_content``.
    ``split-opened``: the same, where the chat template writes the first ``<think>`` into the prompt."""
    vocabulary: int | None = None
    """The model's token ids are 0 to ``vocabulary - 1``, if known: an answer with others is recorded and
    never trained.
    """
    context: int | None = None
    """Tokens of prompt and answer together that the model takes, if known: longer transitions that an agent
    hands over itself are refused. The limit of a call is ``window``."""
    window: int | None = field(default=None, init=False)
    """Tokens of prompt and answer together, as far as known."""
    can_count: bool | None = field(default=None, init=False)
    """Whether the engine counts tokens (``POST /tokenize``); ``None``: not tried yet."""
    always_count: bool = field(default=False, init=False)
    """The engine refused a prompt that should have fitted by its bytes: from then on, each is counted."""
    inexact_streams: set[bool] = field(default_factory=set, init=False)
    """Kinds of stream (``True``: with tools) that have lost token ids: they are replayed from then on."""
    endpoints: Endpoints = field(init=False, repr=False)
    _spellings: tuple[bytes, ...] = field(init=False, repr=False)
    """The spellings of the route's key in JSON."""

    def __post_init__(self) -> None:
        urls = [self.url, *self.replicas]
        for url in urls:
            self._check_url(url)
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise ValueError(f"route {self.policy!r}: an address is given twice: {', '.join(urls)}")
        self._check_policies()
        self.window = self.max_len
        self.endpoints = Endpoints(urls)
        key = self.api_key or ""
        quoted = json.dumps(key)[1:-1]
        self._spellings = tuple({s.encode() for s in (key, quoted, quoted.replace("/", r"\/")) if s})

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"route {self.policy!r}: url is {url!r}; give one such as http://127.0.0.1:8000/v1"
            )
        if parts.username or parts.password or parts.query:
            raise ValueError(
                f"route {self.policy!r}: the url carries credentials or a query; pass the key as api_key"
            )

    def _check_policies(self) -> None:
        for name, kind in (("over_length", OverLengthPolicy), ("reasoning", Reasoning)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise ValueError(
                    f"route {self.policy!r}: {name} is {value!r}; use one of {', '.join(get_args(kind))}"
                )
        if self.reserve < 0 or (self.max_len is not None and self.max_len <= self.reserve):
            raise ValueError(
                f"route {self.policy!r}: reserve is {self.reserve}, max_len is {self.max_len}; reserve "
                "must be 0 or more tokens, and less than max_len"
            )

    def learn_window(self, engine: int | None) -> None:
        """Set the window to the engine's ``max_model_len``; ``max_len`` may only lower it."""
        if engine is not None:
            self.window = engine if self.max_len is None else min(engine, self.max_len)

    def passes_through(self, tools: bool) -> bool:
        """Whether a stream is passed on as it arrives; else the answer is asked for whole, and replayed."""
        if not self.trainable:
            return True
        return self.stream_ids if self.stream_ids is not None else tools not in self.inexact_streams

    def in_vocabulary(self, ids: Sequence[int] | None) -> bool:
        """Whether all ids are in the policy's vocabulary."""
        return not ids or self.vocabulary is None or as_ids(ids).largest() < self.vocabulary

    def redact(self, raw: bytes) -> bytes:
        """``raw`` without the route's key, should the engine quote it; ``raw`` itself where it does not."""
        for spelling in self._spellings:
            raw = raw.replace(spelling, b"***")
        return raw

    def scrub(self, raw: bytes) -> bytes:
        """A model's text without the route's key, unless that is so short that it may be a word."""
        return self.redact(raw) if self.api_key and len(self.api_key) >= SECRET_LENGTH else raw

    def redacted(self, headers: dict[str, str]) -> dict[str, str]:
        """Headers of the engine's answer without the route's key."""
        return {n: self.redact_text(v) for n, v in headers.items()} if self.api_key else headers

    def redact_text(self, text: str) -> str:
        """A text from the engine without the route's key."""
        return self.redact(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def served_version(self) -> int | None:
        """Version of the policy served now."""
        return self.version() if self.version else None


class Routes:
    """The routes by policy name."""

    def __init__(self) -> None:
        self._by_policy: dict[str, Upstream] = {}

    def __iter__(self) -> Iterator[Upstream]:
        return iter(self._by_policy.values())

    def add(self, upstream: Upstream) -> None:
        """Add a route, or put another engine behind a policy."""
        self._by_policy[upstream.policy] = upstream

    def latest(self, upstream: Upstream) -> Upstream:
        """The engine that serves the policy of ``upstream`` now."""
        return self._by_policy.get(upstream.policy, upstream)

    def remove(self, policy: str) -> None:
        """Forget a route; calls under way finish."""
        if policy not in self._by_policy:
            raise LookupError(f"no route {policy!r}; routes: {self.names()}")
        del self._by_policy[policy]

    def names(self) -> list[str]:
        """Policy names, in the order in which they were added."""
        return list(self._by_policy)

    def choose(self, model: str, header: str | None, agent_policy: str | None) -> Upstream:
        """By requested model, SDK header, agent's policy, default route, else the trained policy."""
        if route := self._by_policy.get(model):
            return route
        if wanted := header or agent_policy:
            if route := self._by_policy.get(wanted):
                return route
            raise RequestRefused(
                404, "no-route", f"no policy {wanted!r} is served here; policies: {self.names()}"
            )
        if route := self._by_policy.get("default"):
            return route
        trained = [route for route in self._by_policy.values() if route.trainable]
        if len(trained) == 1:  # any name means the trained policy
            return trained[0]
        if len(self._by_policy) == 1:
            return next(iter(self._by_policy.values()))
        raise RequestRefused(
            404,
            "no-route",
            f"no policy is called {model!r} and there is no default; policies: {self.names()}",
        )
