"""The resources of an attempt: the version that its rollout was queued with.

An attempt never gets a later version, because the rewards of one prompt would then be credited to another. An
address is the exception: an endpoint at the run's gateway is taken from the newest version, because the
gateway has another address after the trainer was started again.
"""

from __future__ import annotations

from agentlightning.keys import CONTEXT_KEY
from agentlightning.store.base import Store
from agentlightning.types import LLM, Resource, Rollout


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
