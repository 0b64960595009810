"""Where a call goes: the engines behind the policies, and which calls are selected for training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from yarl import URL

from agentlightning.gateway.errors import Refused
from agentlightning.types import Tags, UsageError

Select = str | list[str] | Callable[[Tags], bool] | None
"""Calls to train: all (``None``), an agent's name, several, ``"re:…"`` over the name, a predicate of tags."""


@dataclass(slots=True, kw_only=True)
class Upstream:
    """A policy's engine: an OpenAI-compatible base URL (ending in ``/v1``) and the model name it knows.

    ``version`` says which version of the policy it serves, when its answers do not. ``stream_ids``: whether
    its streams carry every token id (``None``: found out from the streams themselves).
    """

    url: str
    model: str
    policy: str = "default"
    api_key: str | None = field(default=None, repr=False)
    trainable: bool = True
    version: Callable[[], int | None] | None = None
    stream_ids: bool | None = None
    over_length: Literal["error"] = "error"
    """A prompt longer than the model's context: ``error`` passes the engine's refusal on and records it."""
    inexact: set[bool] = field(default_factory=set, init=False)
    """Kinds of stream (with tools: True) seen to lose token ids; from then on asked whole and replayed."""
    endpoints: dict[str, URL] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"route {self.policy!r}: url is {self.url!r}; give one such as http://127.0.0.1:8000/v1"
            )
        if parts.username or parts.password or parts.query:
            raise ValueError(
                f"route {self.policy!r}: the url carries credentials or a query; pass the key as api_key"
            )
        base = self.url.rstrip("/")
        self.endpoints = {"chat": URL(f"{base}/chat/completions"), "completions": URL(f"{base}/completions")}

    def passes_through(self, tools: bool) -> bool:
        """Whether a stream may be passed on as it arrives (else it is asked for whole, and replayed)."""
        if not self.trainable:
            return True
        return self.stream_ids if self.stream_ids is not None else tools not in self.inexact

    def serving(self) -> int | None:
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

    def remove(self, policy: str) -> None:
        """Forget a route; calls under way finish."""
        if policy not in self._by_policy:
            raise LookupError(f"no route {policy!r}; routes: {self.names()}")
        del self._by_policy[policy]

    def names(self) -> list[str]:
        """Policy names, in order of their adding."""
        return list(self._by_policy)

    def choose(self, model: str, header: str | None, agent_policy: str | None) -> Upstream:
        """By requested model, wire layer's header, agent's policy, default route, else the trained one."""
        if route := self._by_policy.get(model):
            return route
        if wanted := header or agent_policy:
            if route := self._by_policy.get(wanted):
                return route
            raise Refused(404, "no-route", f"no policy {wanted!r} is served here; policies: {self.names()}")
        if route := self._by_policy.get("default"):
            return route
        trained = [route for route in self._by_policy.values() if route.trainable]
        if len(trained) == 1:  # a model name from the agent's old life means the policy that is trained
            return trained[0]
        if len(self._by_policy) == 1:
            return next(iter(self._by_policy.values()))
        raise Refused(
            404,
            "no-route",
            f"no policy is called {model!r} and there is no default; policies: {self.names()}",
        )


class BadSelect(UsageError, ValueError):
    """A ``select`` that selects nothing because it cannot be read."""


def selector(select: Select) -> Callable[[Tags], bool]:
    """``select`` as a predicate of a call's tags."""
    if select is None:
        return lambda tags: True
    if callable(select):
        return select
    if isinstance(select, str) and select.startswith("re:"):
        try:
            pattern = re.compile(select[3:])
        except re.error as error:
            raise BadSelect(f"select: {select[3:]!r} is not a regular expression: {error}") from None
        return lambda tags: pattern.fullmatch(tags.get("agent", "")) is not None
    names = frozenset([select] if isinstance(select, str) else select)
    return lambda tags: tags.get("agent", "") in names
