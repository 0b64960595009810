"""The addresses of one policy: which engine a call goes to, and which one when that is gone.

All calls of an attempt go to one endpoint, so that its prompts find their prefix in that engine's cache: the
one that ranks first for the attempt's id (rendezvous hashing: Thaler and Ravishankar, 1998). Invariants: the
ranking is a function of the key and the addresses alone; an endpoint that goes takes with it only the calls
that were its own, and they go to the one that ranks next; every endpoint is offered to a call once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

from yarl import URL

EJECTION_SECONDS = 10.0
"""Seconds for which an endpoint that let nobody connect is passed over; then one call tries it again."""
MAX_RANKINGS = 16_384
"""Rankings that are remembered."""


@lru_cache(maxsize=MAX_RANKINGS)
def ranking(key: str, urls: tuple[str, ...]) -> tuple[int, ...]:
    """The places of ``urls`` in the order in which ``key`` prefers them."""
    weights = [blake2b(f"{key}\0{url}".encode(), digest_size=8).digest() for url in urls]
    return tuple(sorted(range(len(urls)), key=weights.__getitem__, reverse=True))


class Endpoint:
    """One engine of a policy, and how it does."""

    __slots__ = ("answered", "ejected_until", "failovers", "in_flight", "lost", "url", "urls")

    def __init__(self, url: str) -> None:
        self.url = url
        base = url.rstrip("/")
        self.urls = {
            "chat": URL(f"{base}/chat/completions"),
            "completions": URL(f"{base}/completions"),
            "tokenize": URL(f"{base.removesuffix('/v1')}/tokenize"),
        }
        self.in_flight = 0
        """Requests that it has now."""
        self.answered = 0
        """Requests whose answer began, whatever it said."""
        self.lost = 0
        """Requests that found nobody there, or were cut off before their answer began."""
        self.failovers = 0
        """Of these: requests that were asked again, whole, at another endpoint."""
        self.ejected_until = 0.0
        """By the clock; 0: it is there, as far as known."""

    def state(self) -> dict[str, object]:
        """For JSON."""
        return {
            "url": self.url,
            "up": not self.ejected_until,
            "in_flight": self.in_flight,
            "answered": self.answered,
            "lost": self.lost,
            "moved": self.failovers,
        }


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
        """The addresses as a request of ``key`` should try them; ``None``: each begins with the next.

        Those that rest come last: a call fails only when it was refused by all.
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
        """Whether to try it in its turn. When its rest is over, one call does; the others wait for how that
        ends.
        """
        if not endpoint.ejected_until:
            return True
        if (now := self._clock()) < endpoint.ejected_until:
            return False
        endpoint.ejected_until = now + EJECTION_SECONDS
        return True

    def mark_down(self, endpoint: Endpoint) -> bool:
        """Nobody can connect to it: let it rest. Whether it was there before."""
        was, endpoint.ejected_until = endpoint.ejected_until, self._clock() + EJECTION_SECONDS
        return not was

    def mark_up(self, endpoint: Endpoint) -> bool:
        """It has answered. Whether it was gone before."""
        was, endpoint.ejected_until = endpoint.ejected_until, 0.0
        return bool(was)
