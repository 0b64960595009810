"""Keys of attempts for a runner outside the trainer's process.

It either holds the run's secret (``AGL_SECRET``) and mints keys that the gateway recognises, or has a token
of the role runner and gets the keys of its attempts from the store's server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from agentlightning.gateway import AttemptInfo
from agentlightning.keys import Keys
from agentlightning.runner.outcome import CannotRun
from agentlightning.store.base import AttemptEnded, Conflict, Store
from agl_cluster.store.client import StoreClient
from agl_cluster.store.outcomes import Forbidden, Unauthorized


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
    process has the token of a role; else ``None``: agents cannot call a gateway of Agent Lightning then.
    """
    if "AGL_SECRET" in os.environ:
        return RemoteAttemptKeys(Keys.from_env())
    return IssuedAttemptKeys(store) if isinstance(store, StoreClient) and store.has_role_token else None
