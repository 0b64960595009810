"""The lineage of a prompt: versions of resources by their content, and the candidates it was made of."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from agentlightning.store.base import NotFound, Store
from agentlightning.types import Resources
from agentlightning.types.work import JsonResource


async def lineage_of_prompt(store: Store, resources_id: str) -> dict[str, Any]:
    """Return the versions of resources with their digests, and the ancestors that a prompt search recorded.
    Raise NotFound for an id that the store does not have.
    """
    newest = await store.get_resources_by_id(resources_id)
    versions = [
        await store.get_resources_by_id(resources_id, version) for version in range(1, newest.version + 1)
    ]
    seen, wanted, ancestors = {resources_id}, list(_parents(newest)), []
    while wanted:
        name = wanted.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            parent = await store.get_resources_by_id(name)
        except NotFound:
            ancestors.append({"resources": name, "missing": "the store does not have it"})
            continue
        ancestors.append(_line(parent))
        wanted += _parents(parent)
    return {**_line(newest), "versions": [_line(one) for one in versions], "ancestors": ancestors}


def _parents(bundle: Resources) -> list[str]:
    held = bundle.resources.get("candidate")
    told = held.value if isinstance(held, JsonResource) else None
    return [str(one) for one in told.get("parents", ())] if isinstance(told, dict) else []


def _line(bundle: Resources) -> dict[str, Any]:
    texts = {name: msgspec.to_builtins(one) for name, one in bundle.resources.items() if name != "candidate"}
    for one in texts.values():
        if isinstance(one, dict):
            one.pop("api_key", None)
    digest = hashlib.sha256(msgspec.json.encode(texts, order="sorted")).hexdigest()[:32]
    held = {"resources": bundle.resources_id, "version": bundle.version, "digest": digest}
    return {**held, "made": bundle.create_time, "parents": _parents(bundle)}
