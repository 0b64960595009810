"""Resources: every bundle that agents were given, how its versions differ, the tree of a prompt search.

A prompt search stores a candidate as resources, with a JSON resource ``candidate`` that names run, step and
``parents``; its rewards are those of the rollouts that were queued with it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from agentlightning.store.base import NotFound, Store
from agentlightning.types.work import LLM, JsonResource, PromptTemplate, Resource, Resources
from agl_dashboard.data.query import BadQuery
from agl_dashboard.server.context import context_of, crumbs
from agl_dashboard.server.render import path, render

ORIGIN: Final = "candidate"
_PAGE: Final = 200
_VERSIONS: Final = 100
"""Versions that are listed, the newest first."""


class Entry(NamedTuple):
    """A bundle in the list. ``depth``: in the tree of its search."""

    resources: Resources
    kinds: list[tuple[str, str]]
    depth: int
    origin: Mapping[str, Any]


class Changed(NamedTuple):
    """One line of a comparison: ``same, gone, new``."""

    text: str
    kind: str


async def page(request: web.Request) -> web.Response:
    """All resources of a store."""
    context, place = context_of(request), request.match_info["place"]
    store = await context.places.store(place)
    found = await store.query_resources(_PAGE, after=request.query.get("after"))
    values = {
        "title": "Resources",
        "trail": crumbs(place),
        "place": place,
        "entries": tree(found),
        "after": found[-1].resources_id if len(found) == _PAGE else None,
        "live": path("s", place, "events"),
    }
    return render(request, "resources.html", values)


async def one(request: web.Request) -> web.Response:
    """One bundle: a version, and what changed since another."""
    context, place = context_of(request), request.match_info["place"]
    store, resources_id = await context.places.store(place), request.match_info["resources"]
    newest = await store.get_resources_by_id(resources_id)
    version = _version(request.query.get("version"), newest.version)
    shown = newest if version == newest.version else await store.get_resources_by_id(resources_id, version)
    origin = origin_of(shown)
    before = await _before(store, shown, origin, request.query.get("since"))
    values = {
        "title": resources_id,
        "trail": [*crumbs(place), ("Resources", path("s", place, "resources"))],
        "place": place,
        "shown": shown,
        "texts": texts(shown),
        "origin": origin,
        "newest": newest.version,
        "versions": list(range(newest.version, max(0, newest.version - _VERSIONS), -1)),
        "before": before,
        "changes": changes(texts(before), texts(shown)) if before is not None else [],
    }
    return render(request, "resource.html", values)


def _version(text: str | None, newest: int) -> int:
    if text is None:
        return newest
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= newest):
        raise BadQuery(f"version {text[:40]!r}: versions go from 1 to {newest}")
    return int(text)


async def _before(
    store: Store, shown: Resources, origin: Mapping[str, Any], since: str | None
) -> Resources | None:
    """Return what a version is compared with: the one asked for, the one before, or its parent."""
    if since is not None:
        return await store.get_resources_by_id(shown.resources_id, _version(since, shown.version))
    if shown.version > 1:
        return await store.get_resources_by_id(shown.resources_id, shown.version - 1)
    parents = origin.get("parents")
    if isinstance(parents, list) and parents:
        try:
            return await store.get_resources_by_id(str(parents[0]))
        except NotFound:
            return None
    return None


def origin_of(bundle: Resources) -> Mapping[str, Any]:
    """Return where a candidate of a prompt search came from; empty for any other resources."""
    found = bundle.resources.get(ORIGIN)
    return found.value if isinstance(found, JsonResource) and isinstance(found.value, dict) else {}


def tree(found: Sequence[Resources]) -> list[Entry]:
    """Return the bundles, each candidate below its first parent. Every bundle is there once."""
    known = {one.resources_id: one for one in found}
    below: dict[str, list[Resources]] = {}
    roots = []
    for bundle in found:
        parents = origin_of(bundle).get("parents")
        parent = str(parents[0]) if isinstance(parents, list) and parents else ""
        if parent in known and parent != bundle.resources_id:
            below.setdefault(parent, []).append(bundle)
        else:
            roots.append(bundle)
    out: list[Entry] = []
    seen: set[str] = set()
    waiting = [(bundle, 0) for bundle in reversed([*roots, *found])]  # then those of a circle of parents
    while waiting:
        bundle, depth = waiting.pop()
        if bundle.resources_id in seen:
            continue
        seen.add(bundle.resources_id)
        out.append(
            Entry(bundle, [(n, _kind(r)) for n, r in bundle.resources.items()], depth, origin_of(bundle))
        )
        waiting += [(child, depth + 1) for child in reversed(below.get(bundle.resources_id, []))]
    return out


def _kind(resource: Resource) -> str:
    return {"LLM": "model", "ProxyLLM": "model", "PromptTemplate": "prompt"}.get(
        type(resource).__name__, "JSON"
    )


def texts(bundle: Resources) -> dict[str, str]:
    """Return name → text of each resource. Keys of endpoints are not shown."""
    out = {}
    for name, resource in bundle.resources.items():
        if isinstance(resource, PromptTemplate):
            out[name] = resource.template
            continue
        if isinstance(resource, LLM):
            resource = msgspec.structs.replace(resource, api_key="***" if resource.api_key else None)
        value = resource.value if isinstance(resource, JsonResource) else msgspec.to_builtins(resource)
        out[name] = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return out


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, list[Changed]]]:
    """Return, for each resource that differs, its lines."""
    found = []
    for name in dict.fromkeys([*before, *after]):
        a, b = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        if a != b:
            lines = difflib.ndiff(a[:2_000], b[:2_000])
            kinds = {"  ": "same", "- ": "gone", "+ ": "new"}
            found.append((name, [Changed(x[2:], kinds[x[:2]]) for x in lines if x[:2] in kinds]))
    return found
