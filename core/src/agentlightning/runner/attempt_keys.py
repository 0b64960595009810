"""Keys of attempts, with which agents call the gateway.

In the trainer's process the gateway mints the keys. A runner elsewhere either holds the run's secret
(``AGL_SECRET``) and mints keys that the gateway recognises, or has a token of the role runner and gets the
keys of its attempts from the store's server. It finds the gateway in the rollout's resources:
the attempt's key replaces the placeholder ``keys.CONTEXT_KEY`` in the ``api_key`` of an :class:`LLM`.

Invariant: a key is sent to one gateway and to no other server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from agentlightning.gateway import AttemptInfo
from agentlightning.keys import CONTEXT_KEY, Keys
from agentlightning.runner.outcomes.outcome import CannotRun
from agentlightning.store.base import AttemptEnded, Conflict, Forbidden, Store, Unauthorized
from agentlightning.types import LLM, Resource

if TYPE_CHECKING:
    from agentlightning.store.http.client import StoreClient


class AttemptKeys(Protocol):
    """Opens attempts at a gateway and closes them."""

    @property
    def url(self) -> str | None:
        """Base URL of the gateway, if all rollouts share one."""

    def open_attempt(self, info: AttemptInfo) -> str: ...
    async def close_attempt(self, attempt_id: str) -> None: ...


class RemoteAttemptKeys:
    """Keys for a gateway in another process. When the gateway first sees a key, it reads the attempt from the
    store.
    """

    url = None

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

    url = None

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
    """Return the resources with the attempt's key in them, the key, and the gateway's URL. Raise
    :class:`CannotRun` if an endpoint needs a key and ``attempt_keys`` is ``None``, or if the endpoints belong
    to several gateways.
    """
    ours = {
        name: r
        for name, r in resources.items()
        if isinstance(r, LLM)
        and (r.api_key == CONTEXT_KEY or (attempt_keys is not None and r.endpoint == attempt_keys.url))
    }
    urls = sorted({r.endpoint.rstrip("/") for r in ours.values()})
    if attempt_keys is None:
        if urls:
            raise CannotRun(
                f"resource {next(iter(ours))!r} points at the gateway {urls[0]}, which wants a key of its "
                "run: set AGL_SECRET to the same value (at least 16 bytes) here and where the gateway runs, "
                "or AGL_TOKEN to a token from `agl token --role runner`"
            )
        return dict(resources), None, None
    if len(urls) > 1:
        raise CannotRun(f"the rollout's resources point at several gateways ({', '.join(urls)}); give it one")
    key = attempt_keys.open_attempt(info)
    keyed: dict[str, Resource] = {n: msgspec.structs.replace(r, api_key=key) for n, r in ours.items()}
    return {**resources, **keyed}, key, urls[0] if urls else attempt_keys.url
