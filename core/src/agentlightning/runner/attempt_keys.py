"""Keys of attempts, with which agents call the gateway.

In the trainer's process the gateway mints the keys. A runner elsewhere either holds the run's secret
(``AGL_SECRET``) and mints keys that the gateway recognises, or has a token of the role runner and gets the
keys of its attempts from the store's server. It finds the gateway in the rollout's resources:
the attempt's key replaces the placeholder ``keys.CONTEXT_KEY`` in the ``api_key`` of an :class:`LLM`.

Invariant: a key is sent to one gateway and to no other server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from agentlightning.gateway import AttemptInfo
from agentlightning.gateway.upstream.endpoints import ranking
from agentlightning.keys import CONTEXT_KEY, Keys
from agentlightning.runner.outcomes.outcome import CannotRun
from agentlightning.store.base import AttemptEnded, Conflict, Forbidden, Store, Unauthorized
from agentlightning.types import LLM, Resource

if TYPE_CHECKING:
    from agentlightning.store.http.client import StoreClient


class AttemptKeys(Protocol):
    """Opens attempts at a gateway and closes them."""

    @property
    def urls(self) -> Sequence[str]:
        """Base URLs of the run's gateways; none if only the resources of rollouts name them."""

    def open_attempt(self, info: AttemptInfo) -> str: ...
    async def close_attempt(self, attempt_id: str) -> None: ...


class RemoteAttemptKeys:
    """Keys for a gateway in another process. When the gateway first sees a key, it reads the attempt from the
    store.
    """

    urls: Sequence[str] = ()

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def open_attempt(self, info: AttemptInfo) -> str:
        """Return the attempt's key."""
        return self._keys.mint(info.rollout_id, info.attempt_id, run_id=info.run_id, fence=info.fence)

    async def close_attempt(self, attempt_id: str) -> None:
        """Do nothing: the gateway refuses the attempt's calls once the store has the attempt's end."""


class IssuedAttemptKeys:
    """Keys that the store's server makes for a runner without the secret. :meth:`fetch` comes before
    :meth:`open_attempt`.
    """

    urls: Sequence[str] = ()

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._fetched: dict[str, str] = {}

    async def fetch(self, info: AttemptInfo) -> None:
        """Get the key of an attempt. :class:`CannotRun`: the server makes none, or not for this token."""
        try:
            key = await self._store.attempt_key(info.rollout_id, info.attempt_id)
        except AttemptEnded:
            raise
        except (Conflict, Forbidden, Unauthorized) as error:
            raise CannotRun(f"the store gives no keys of attempts: {error}") from error
        self._fetched[info.attempt_id] = key

    def open_attempt(self, info: AttemptInfo) -> str:
        """Return the attempt's key."""
        return self._fetched[info.attempt_id]

    async def close_attempt(self, attempt_id: str) -> None:
        """Forget the key; the attempt's end in the store ends it."""
        self._fetched.pop(attempt_id, None)


def attempt_keys_for(store: Store) -> RemoteAttemptKeys | IssuedAttemptKeys | None:
    """Return keys made with the secret in ``AGL_SECRET``; without it, those of a store's server where this
    process has the token of a role; else ``None``.
    """
    from agentlightning.store.http.client import StoreClient

    keys = attempt_keys_from_env()
    if keys is None and isinstance(store, StoreClient) and store.has_role_token:
        return IssuedAttemptKeys(store)
    return keys


def attempt_keys_from_env() -> RemoteAttemptKeys | None:
    """Return keys made with the secret in ``AGL_SECRET``; ``None`` if it is not set. Without keys, agents
    cannot call a gateway of Agent Lightning.
    """
    return RemoteAttemptKeys(Keys.from_env()) if "AGL_SECRET" in os.environ else None


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
