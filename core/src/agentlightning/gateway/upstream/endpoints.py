"""The endpoints of one policy, and the order in which a call tries them.

All calls of an attempt go to one endpoint, so that its prompts find their prefix in that engine's cache: the
endpoint that ranks first for the attempt's id (rendezvous hashing: Thaler and Ravishankar, 1998). Invariants:
the ranking is a function of the key and the URLs alone; when an endpoint goes down, only its own calls move,
each to the endpoint that ranks next; a call is offered every endpoint once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from yarl import URL

from agentlightning.webserver.proxies import vendor_proxy

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
