"""Doors to the gateway: who mints an attempt's key, and which endpoints it is for.

In the trainer's process the gateway itself is the gate. A runner elsewhere holds the run's secret
(``AGL_SECRET``) and mints keys that the gateway recognises; where the gateway is, the rollout's resources
say: an :class:`LLM` whose ``api_key`` is the placeholder ``keys.CONTEXT_KEY`` is to be given the attempt's
key.

Invariant: a key goes to one gateway, and to endpoints of other people never.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import msgspec

from agentlightning.gateway import AttemptInfo
from agentlightning.keys import CONTEXT_KEY, Keys
from agentlightning.types import LLM, Resource, UsageError


class CannotRun(UsageError):
    """This runner cannot run any rollout like this one, whoever tries: serving ends with it, and the rollout
    may be tried elsewhere.
    """


class AttemptKeys(Protocol):
    """What the runner needs of the gateway."""

    @property
    def url(self) -> str | None:
        """Its base URL, if it is one that all rollouts share."""

    def open_attempt(self, info: AttemptInfo) -> str: ...
    async def close_attempt(self, attempt_id: str) -> None: ...


class RemoteAttemptKeys:
    """A gateway in another process, which reads the attempt from the store when its key first comes by."""

    url = None

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def open_attempt(self, info: AttemptInfo) -> str:
        """The attempt's key."""
        return self._keys.mint(info.rollout_id, info.attempt_id, run_id=info.run_id, fence=info.fence)

    async def close_attempt(self, attempt_id: str) -> None:
        """The gateway refuses the attempt's calls as soon as the store knows that it has ended."""


def attempt_keys_from_env() -> RemoteAttemptKeys | None:
    """A gate with the secret of ``AGL_SECRET``; ``None`` without one: then only endpoints that are not a
    gateway of ours can be reached.
    """
    return RemoteAttemptKeys(Keys.from_env()) if "AGL_SECRET" in os.environ else None


def with_attempt_key(
    resources: Mapping[str, Resource], attempt_keys: AttemptKeys | None, info: AttemptInfo
) -> tuple[dict[str, Resource], str | None, str | None]:
    """The resources with the attempt's key in its place, the key, and the gateway's URL.

    :class:`CannotRun` where there is no gate for endpoints that need one, or where they are several gateways.
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
                "run: set AGL_SECRET to the same value (at least 16 bytes) here and where the gateway runs"
            )
        return dict(resources), None, None
    if len(urls) > 1:
        raise CannotRun(f"the rollout's resources point at several gateways ({', '.join(urls)}); give it one")
    key = attempt_keys.open_attempt(info)
    keyed: dict[str, Resource] = {n: msgspec.structs.replace(r, api_key=key) for n, r in ours.items()}
    return {**resources, **keyed}, key, urls[0] if urls else attempt_keys.url
