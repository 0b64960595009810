"""What an agent is given for one attempt: its resources, and the key with which it calls the gateway.

The resources are of the version that the rollout was queued with. An attempt never gets a later version,
because the rewards of one prompt would then be credited to another. An address is the exception: an endpoint
at the run's gateway is taken from the newest version, because the gateway has another address after the
trainer was started again.

In the trainer's process the gateway mints the keys. A runner elsewhere (agl-cluster) mints or fetches them
itself, and finds the gateway in the rollout's resources: the attempt's key replaces the placeholder
``keys.CONTEXT_KEY`` in the ``api_key`` of an :class:`LLM`.

Invariant: a key is sent to one gateway and to no other server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from agentlightning.capture.context import AttemptContext, Sink
from agentlightning.gateway import AttemptInfo
from agentlightning.gateway.route import ranking
from agentlightning.keys import CONTEXT_KEY
from agentlightning.runner.outcome import CannotRun
from agentlightning.store.base import Store
from agentlightning.types import LLM, AttemptedRollout, Resource, Rollout


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


async def open_attempt(
    lease: AttemptedRollout,
    store: Store,
    attempt_keys: AttemptKeys | None,
    policies: dict[str, str],
    sink: Sink,
) -> AttemptContext:
    """Open the attempt at its gateway and return the identity under which its agent runs, with what it is
    given. Its spans go to ``sink``. Raise :class:`CannotRun` if this runner can open no such attempt.
    """
    info = AttemptInfo.of(lease.rollout, lease.attempt, policies)
    resources = await attempt_resources(store, lease.rollout)
    if isinstance(attempt_keys, FetchedKeys):
        await attempt_keys.fetch(info)
    resources, key, gateway = with_attempt_key(resources, attempt_keys, info)
    return AttemptContext(
        rollout_id=info.rollout_id,
        attempt_id=info.attempt_id,
        sink=sink,
        key=key,
        gateway=gateway,
        policies=policies,
        resources=resources,
        task=lease.rollout.input,
    )


async def attempt_resources(store: Store, rollout: Rollout) -> dict[str, Resource]:
    """Return the resources of a leased rollout by name; an empty dict if it was queued without resources."""
    if rollout.resources_id is None:
        return {}
    newest = await store.get_resources_by_id(rollout.resources_id)
    if rollout.resources_version in (None, newest.version):
        return newest.resources
    pinned = await store.get_resources_by_id(rollout.resources_id, rollout.resources_version)
    return {
        name: newest.resources[name] if _same_gateway_policy(given, newest.resources.get(name)) else given
        for name, given in pinned.resources.items()
    }


def _same_gateway_policy(given: Resource, now: Resource | None) -> bool:
    """Return whether both are endpoints at the run's gateway and serve the same policy."""
    if not (isinstance(given, LLM) and isinstance(now, LLM)):
        return False
    return given.api_key == now.api_key == CONTEXT_KEY and given.model == now.model


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
    urls = runs[0] if runs else own
    url = urls[ranking(info.attempt_id, urls)[0]] if urls else None
    keyed: dict[str, Resource] = {
        name: msgspec.structs.replace(r, api_key=key, endpoint=url, replicas=[]) for name, r in ours.items()
    }
    return {**resources, **keyed}, key, url
