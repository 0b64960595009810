"""The endpoints of one policy: which of them a call goes to, and which next when that one is down.

All calls of an attempt go to one endpoint, so that its prompts find their prefix in that engine's cache: the
one that ranks first for the attempt's id (rendezvous hashing: Thaler and Ravishankar, 1998). Invariants: the
ranking is a function of the key and the URLs alone; when an endpoint goes down, only its own calls move, each
to the endpoint that ranks next; every endpoint is offered to a call once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from yarl import URL

EJECTION_SECONDS = 10.0
"""Seconds for which an endpoint that could not be connected to is passed over; then one call tries it."""
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
    in_flight: int = 0
    """Requests under way."""
    answered: int = 0
    """Requests whose answer began, errors included."""
    lost: int = 0
    """Requests that could not connect, or lost the connection before their answer began."""
    failovers: int = 0
    """Lost requests that were sent again to another endpoint."""
    ejected_until: float = 0.0
    """Time by the clock; 0: it is up, as far as known."""

    def __post_init__(self) -> None:
        base = self.url.rstrip("/")
        paths = {"chat": f"{base}/chat/completions", "completions": f"{base}/completions"}
        paths["tokenize"] = f"{base.removesuffix('/v1')}/tokenize"
        self.urls = {api: URL(path) for api, path in paths.items()}

    def state(self) -> dict[str, object]:
        """For JSON."""
        counts = {name: getattr(self, name) for name in ("in_flight", "answered", "lost", "failovers")}
        return {"url": self.url, "up": not self.ejected_until, **counts}


class Endpoints:
    """The engines of a policy, one or more. ``clock``: seconds, monotonic."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._all = [Endpoint(url) for url in urls]
        self._names = tuple(urls)
        self._clock = clock
        self._turn = 0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._all)

    def order(self, key: str | None) -> Iterator[Endpoint]:
        """The endpoints in the order in which a request of ``key`` tries them; ``None``: round robin.

        Ejected endpoints come last: a call fails only when it has tried all.
        """
        if len(self._all) == 1:
            yield self._all[0]
            return
        ejected = []
        for place in self._ranked(key):
            endpoint = self._all[place]
            if self._eligible(endpoint):
                yield endpoint
            else:
                ejected.append(endpoint)
        yield from ejected

    def _ranked(self, key: str | None) -> Sequence[int]:
        if key is not None:
            return ranking(key, self._names)
        self._turn += 1
        return [(self._turn + i) % len(self._all) for i in range(len(self._all))]

    def _eligible(self, endpoint: Endpoint) -> bool:
        """Whether to try it in its turn. When its ejection is over, one call does; the others wait for how
        that ends.
        """
        if not endpoint.ejected_until:
            return True
        if (now := self._clock()) < endpoint.ejected_until:
            return False
        endpoint.ejected_until = now + EJECTION_SECONDS
        return True

    def mark_down(self, endpoint: Endpoint) -> bool:
        """Eject an endpoint that could not be connected to. Whether it was up before."""
        was, endpoint.ejected_until = endpoint.ejected_until, self._clock() + EJECTION_SECONDS
        return not was

    def mark_up(self, endpoint: Endpoint) -> bool:
        """End the ejection of an endpoint that has answered. Whether it was down before."""
        was, endpoint.ejected_until = endpoint.ejected_until, 0.0
        return bool(was)
