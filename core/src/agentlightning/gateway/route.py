"""The engines behind the policies, and the choice of the route that serves a call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel
from yarl import URL

from agentlightning.gateway.answer import EngineAnswer
from agentlightning.gateway.errors import CallFailure, RequestRefused
from agentlightning.proxies import vendor_proxy
from agentlightning.types.base import LogprobsMode
from agentlightning.types.tokens import as_ids

SECRET_LENGTH = 12
"""Characters from which a key counts as a secret; shorter keys are placeholders such as ``EMPTY``."""


Fitted = tuple[dict[str, Any], dict[str, Any]]
"""A request that was shortened: its new body, and the record of the cut (``Call.edited``)."""


class CallEdits:
    """Changes of a route's calls on their way to its engine and back (hook ``agl_call_edits``). Each is noted
    in ``Call.edited``; token ids and logprobs stay the engine's. This one changes nothing. ``api``: the
    engine's.
    """

    async def fit(self, api: str, body: dict[str, Any], kept: dict[Any, Any]) -> Fitted | None:
        """Shorten a request whose prompt leaves no room for an answer; ``None``: send it as it is. Raise
        :class:`CallFailure` if it cannot be served. ``kept``: what edits keep of the attempt.
        """
        return None

    def too_long(self, failure: CallFailure) -> str:
        """What ``Call.edited`` says of a prompt that was refused because it is too long."""
        return "error"

    def whole(self, api: str, raw: bytes) -> bytes:
        """A whole answer of the engine, which was checked, as the agent gets it."""
        return raw

    def events(self, api: str) -> Callable[[bytes], bytes] | None:
        """A function that makes of the data of each event of a stream what the agent gets; ``None``: it gets
        the engine's.
        """
        return None

    def recorded(self, api: str, answer: EngineAnswer) -> dict[str, Any]:
        """Change the messages of an answer as the agent gets them; return what ``Call.edited`` says of it."""
        return {}


@dataclass(slots=True, kw_only=True)
class Upstream:
    """A policy's engine: an OpenAI-compatible base URL (ending in ``/v1``) and the model name it knows.
    ``replicas``: further URLs that serve the same model; each attempt keeps to one endpoint.

    ``version`` returns the served version of the policy, for engines whose answers name none. ``stream_ids``:
    whether its streams carry every token id (``None``: learned from the streams).
    """

    url: str
    model: str
    replicas: Sequence[str] = ()
    policy: str = "default"
    api_key: str | None = field(default=None, repr=False)
    trainable: bool = True
    seeded: bool = False
    """Whether calls that are not trained get a seed too, unless the agent gives one: for engines whose
    answers must be reproducible.
    """
    version: Callable[[], int | None] | None = None
    stream_ids: bool | None = None
    settings: BaseModel | None = None
    """The section ``gateway`` of its run, with the fields by which plugins change its calls."""
    vocabulary: int | None = None
    """The model's token ids are 0 to ``vocabulary - 1``, if known. An answer with other ids is recorded and
    never trained.
    """
    context: int | None = None
    """Tokens of prompt and answer together that the model takes, if known: longer transitions that an agent
    returns are refused.
    """
    logprobs_mode: LogprobsMode | None = None
    """What the engine's logprobs are of. ``processed`` (vLLM: ``--logprobs-mode processed_logprobs``): the
    distribution that tokens were drawn from, so that calls sampled otherwise than the run's policy can be
    trained. ``raw`` (vLLM's default): the model's own. ``None``: not known; such calls are masked.
    """
    edits: CallEdits = field(init=False, repr=False)
    """What is changed of its calls; the gateway that serves the route asks plugins for it."""
    inexact_streams: set[bool] = field(default_factory=set, init=False)
    """Kinds of stream (``True``: with tools) that have lost token ids and are replayed from then on."""
    endpoints: Endpoints = field(init=False, repr=False)
    _spellings: tuple[bytes, ...] = field(init=False, repr=False)
    """The spellings of the route's key in JSON."""

    def __post_init__(self) -> None:
        urls = [self.url, *self.replicas]
        for url in urls:
            self._check_url(url)
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise ValueError(f"route {self.policy!r}: an address is given twice: {', '.join(urls)}")
        if self.logprobs_mode not in (None, *get_args(LogprobsMode)):
            raise ValueError(
                f"route {self.policy!r}: logprobs_mode is {self.logprobs_mode!r}; use one of "
                f"{', '.join(get_args(LogprobsMode))}, or None if it is not known"
            )
        self.edits = CallEdits()
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

    def passes_through(self, tools: bool) -> bool:
        """Whether to pass a stream on as it arrives; otherwise ask for a whole answer and replay it."""
        if not self.trainable:
            return True
        return self.stream_ids if self.stream_ids is not None else tools not in self.inexact_streams

    def in_vocabulary(self, ids: Sequence[int] | None) -> bool:
        """Whether all ids are in the policy's vocabulary."""
        return not ids or self.vocabulary is None or as_ids(ids).largest() < self.vocabulary

    def redact(self, raw: bytes) -> bytes:
        """Remove the route's key from ``raw``; return ``raw`` itself if it does not contain the key."""
        for spelling in self._spellings:
            raw = raw.replace(spelling, b"***")
        return raw

    def scrub(self, raw: bytes) -> bytes:
        """Remove the route's key from a model's text, unless the key is so short that it may be a word."""
        return self.redact(raw) if self.api_key and len(self.api_key) >= SECRET_LENGTH else raw

    def redact_text(self, text: str) -> str:
        """Remove the route's key from a text of the engine."""
        return self.redact(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def served_version(self) -> int | None:
        """The version of the policy that is served now."""
        return self.version() if self.version else None


Routes = dict[str, Upstream]
"""Policy name → its engine, in the order in which they were added."""


def check_open(route: Upstream, routes: Routes, policies: Mapping[str, str]) -> None:
    """Raise :class:`RequestRefused` 403 unless an attempt's key opens the route.

    It opens the policies that are trained, and those that ``policies`` gives to agents; without such a map
    and without a trained policy, all.
    """
    if route.trainable or route.policy in policies.values():
        return
    if policies or any(other.trainable for other in routes.values()):
        raise RequestRefused(
            403,
            "policy-closed",
            f"no agent of this run is given the policy {route.policy!r}: "
            "`policies` says which agents may ask it",
        )


def choose_route(
    routes: Mapping[str, Upstream], model: str, header: str | None, agent_policy: str | None
) -> Upstream:
    """The route of a call, by the first of these that decides: the requested model, the SDK's header, the
    agent's policy, the route ``default``, the only trained policy, the only policy.
    """
    if route := routes.get(model):
        return route
    if wanted := header or agent_policy:
        if route := routes.get(wanted):
            return route
        message = f"no policy {wanted!r} is served here; policies: {list(routes)}"
        raise RequestRefused(404, "no-route", message)
    if route := routes.get("default"):
        return route
    for candidates in ([r for r in routes.values() if r.trainable], list(routes.values())):
        if len(candidates) == 1:  # any model name means this policy
            return candidates[0]
    message = f"no policy is called {model!r} and there is no default; policies: {list(routes)}"
    raise RequestRefused(404, "no-route", message)


EJECTION_SECONDS = 10.0
"""Seconds for which calls avoid an endpoint that refused a connection; then one call tries it again."""
MAX_RANKINGS = 16_384
"""Rankings that are cached."""


@lru_cache(maxsize=MAX_RANKINGS)
def ranking(key: str, urls: tuple[str, ...]) -> tuple[int, ...]:
    """The indices of ``urls``, best first for ``key``."""
    weights = [blake2b(f"{key}\0{url}".encode(), digest_size=8).digest() for url in urls]
    return tuple(sorted(range(len(urls)), key=weights.__getitem__, reverse=True))


@dataclass(slots=True, eq=False)
class Endpoint:
    """One engine of a policy, with its counters."""

    url: str
    urls: dict[str, URL] = field(init=False)
    """API → URL of its requests."""
    proxy: str | None = field(init=False)
    """The proxy that the environment names for it."""
    in_flight: int = 0
    """Requests under way."""
    answered: int = 0
    """Requests whose answer began, errors included."""
    lost: int = 0
    """Requests that could not connect, or lost the connection before their answer began."""
    failovers: int = 0
    """Lost requests that were sent again to another endpoint."""
    ejected_until: float = 0.0
    """Time by the clock of :class:`Endpoints`; 0: the endpoint is up, as far as known."""

    def __post_init__(self) -> None:
        base = self.url.rstrip("/")
        self.urls = {
            "chat": URL(f"{base}/chat/completions"),
            "completions": URL(f"{base}/completions"),
            "tokenize": URL(f"{base.removesuffix('/v1')}/tokenize"),
        }
        self.proxy = vendor_proxy(base)

    def state(self) -> dict[str, object]:
        """The counters, for JSON, without the address: agents that reach the gateway may read them too."""
        counts = {name: getattr(self, name) for name in ("in_flight", "answered", "lost", "failovers")}
        return {"up": not self.ejected_until, **counts}


class Endpoints:
    """The engines of a policy, one or more. ``clock``: seconds, monotonic."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.all = [Endpoint(url) for url in urls]
        self._urls = tuple(urls)
        self._clock = clock
        self._turn = 0

    def order(self, key: str | None) -> Iterator[Endpoint]:
        """The endpoints in the order in which a request of ``key`` tries them; ``None``: round robin.

        Ejected endpoints come last: a call fails only when it has tried all.
        """
        if len(self.all) == 1:
            yield self.all[0]
            return
        ejected = []
        for place in self._ranked(key):
            endpoint = self.all[place]
            if self._eligible(endpoint):
                yield endpoint
            else:
                ejected.append(endpoint)
        yield from ejected

    def _ranked(self, key: str | None) -> Sequence[int]:
        if key is not None:
            return ranking(key, self._urls)
        self._turn += 1
        return [(self._turn + i) % len(self.all) for i in range(len(self.all))]

    def _eligible(self, endpoint: Endpoint) -> bool:
        """Whether to try an endpoint in its turn. After its ejection one call tries it; the others wait for
        the result of that call.
        """
        if endpoint.ejected_until and self._clock() < endpoint.ejected_until:
            return False
        if endpoint.ejected_until:
            self.eject(endpoint)
        return True

    def eject(self, endpoint: Endpoint) -> bool:
        """Make calls avoid an endpoint for :data:`EJECTION_SECONDS`. Return whether it was up before."""
        was, endpoint.ejected_until = endpoint.ejected_until, self._clock() + EJECTION_SECONDS
        return not was
