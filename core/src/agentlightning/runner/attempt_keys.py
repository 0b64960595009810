"""Keys of attempts, with which agents call the gateway.

In the trainer's process the gateway mints the keys. A runner elsewhere (agl-cluster) mints or fetches them
itself, and finds the gateway in the rollout's resources: the attempt's key replaces the placeholder
``keys.CONTEXT_KEY`` in the ``api_key`` of an :class:`LLM`.

Invariant: a key is sent to one gateway and to no other server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from agentlightning.gateway import AttemptInfo
from agentlightning.gateway.upstream.endpoints import ranking
from agentlightning.keys import CONTEXT_KEY
from agentlightning.runner.outcomes.outcome import CannotRun
from agentlightning.types import LLM, Resource


class AttemptKeys(Protocol):
    """Opens attempts at a gateway and closes them."""

    @property
    def urls(self) -> Sequence[str]:
        """Base URLs of the run's gateways; none if only the resources of rollouts name them."""

    def open_attempt(self, info: AttemptInfo) -> str: ...
    async def close_attempt(self, attempt_id: str) -> None: ...


@runtime_checkable
class FetchedKeys(AttemptKeys, Protocol):
    """Keys that somebody else makes: :meth:`fetch` comes before :meth:`open_attempt`."""

    async def fetch(self, info: AttemptInfo) -> None:
        """Get the key of an attempt. :class:`CannotRun`: there is none, and none for other attempts."""


def with_attempt_key(
    resources: Mapping[str, Resource], attempt_keys: AttemptKeys | None, info: AttemptInfo
) -> tuple[dict[str, Resource], str | None, str | None]:
    """Return the resources with the attempt's key and its gateway in them, the key, and the gateway's URL: of
    the gateways of a run, the one that ranks first for the attempt. Raise :class:`CannotRun` if an endpoint
    needs a key and ``attempt_keys`` is ``None``, or if the endpoints belong to the gateways of several runs.
    """
    own = tuple(attempt_keys.urls) if attempt_keys is not None else ()
    ours = {
        name: r
        for name, r in resources.items()
        if isinstance(r, LLM) and (r.api_key == CONTEXT_KEY or r.endpoint in own)
    }
    runs = sorted({tuple(url.rstrip("/") for url in (r.endpoint, *r.replicas)) for r in ours.values()})
    if attempt_keys is None:
        if runs:
            raise CannotRun(
                f"resource {next(iter(ours))!r} points at the gateway {runs[0][0]}, which wants a key of its "
                "run: set AGL_SECRET to the same value (at least 16 bytes) here and where the gateway runs, "
                "or AGL_TOKEN to a token from `agl token --role runner`"
            )
        return dict(resources), None, None
    if len(runs) > 1:
        named = ", ".join(run[0] for run in runs)
        raise CannotRun(f"the rollout's resources point at several gateways ({named}); give it one")
    key = attempt_keys.open_attempt(info)
    url = gateway_of(info.attempt_id, runs[0] if runs else own)
    keyed: dict[str, Resource] = {
        name: msgspec.structs.replace(r, api_key=key, endpoint=url, replicas=[]) for name, r in ours.items()
    }
    return {**resources, **keyed}, key, url


def gateway_of(attempt_id: str, urls: Sequence[str]) -> str | None:
    """Return the gateway that serves an attempt; ``None`` if there is none."""
    return urls[ranking(attempt_id, tuple(urls))[0]] if urls else None
