"""Resources: named, versioned bundles given to agents.

Invariant: a version is never changed; an update adds the next one.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from sqlalchemy import and_, bindparam, func, select

from agentlightning.store import codec
from agentlightning.store.base import Conflict, GivenResource, NotFound
from agentlightning.store.bounds import RESERVED_IDS, check_count, check_fields
from agentlightning.store.pages import check_limit
from agentlightning.store.sql import schema
from agentlightning.store.sql.core import Tables, read, write
from agentlightning.store.sql.database import given
from agentlightning.types import LLM, JsonResource, PromptTemplate, Resource, Resources, new_id

Row = tuple[Any, ...]
_t = schema.resources
_COLUMNS = (_t.c.resources_id, _t.c.version, _t.c.create_time, _t.c.data)
_LATEST = select(*_COLUMNS).order_by(_t.c.seq.desc()).limit(1)
_GET = (
    select(*_COLUMNS)
    .where(given(_t.c.resources_id), _t.c.version == func.coalesce(bindparam("wanted"), _t.c.version))
    .order_by(_t.c.version.desc())
    .limit(1)
)
_id = _t.c.resources_id
_bundles = (
    select(_id, func.min(_t.c.seq).label("first"), func.max(_t.c.version).label("newest"))
    .group_by(_id)
    .subquery()
)
_QUERY = (
    select(*_COLUMNS)
    .join(_bundles, and_(_id == _bundles.c.resources_id, _t.c.version == _bundles.c.newest))
    .order_by(_bundles.c.first.desc())
)
_CURSOR = select(func.min(_t.c.seq)).where(given(_id))


def to_resource(name: str, value: GivenResource) -> Resource:
    """Return the resource of an object, a string (a prompt template) or a dict (its ``resource_type``, or
    JSON).
    """
    if isinstance(value, (LLM, PromptTemplate, JsonResource)):
        check_fields(value, f"resources[{name!r}].")
        return value
    if isinstance(value, str):
        return PromptTemplate(template=value)
    if isinstance(value, dict):
        if "resource_type" not in value:
            return JsonResource(value=value)
        try:
            return cast(Resource, msgspec.convert(value, Resource))
        except msgspec.ValidationError as error:
            raise ValueError(f"resources[{name!r}]: {error}") from None
    raise TypeError(f"resources[{name!r}] must be a resource, a string or a dict, not {type(value).__name__}")


@write
def add_resources(store: Tables, resources: dict[str, GivenResource], resources_id: str | None) -> Resources:
    if resources_id is not None:
        if resources_id in (*RESERVED_IDS, "latest"):
            raise ValueError(f"resources_id {resources_id!r} means something else in a URL: choose another")
        if resources_row(store, resources_id) is not None:
            raise Conflict(f"there are resources {resources_id}: update_resources adds a version")
    return _add(store, resources_id or new_id("rs"), 1, resources)


@write
def update_resources(store: Tables, resources_id: str, resources: dict[str, GivenResource]) -> Resources:
    row = require_resources(store, resources_id)
    return _add(store, resources_id, row[1] + 1, resources)


def _add(store: Tables, resources_id: str, version: int, resources: dict[str, GivenResource]) -> Resources:
    store.db.keep_order(_t)
    made = {name: to_resource(name, value) for name, value in resources.items()}
    columns: dict[str, Any] = {
        "resources_id": resources_id,
        "version": version,
        "create_time": store.clock(),
    }
    store.db.insert(_t, {**columns, "data": codec.pack(made)})
    return Resources(**columns, resources=made)


@read
def get_latest_resources(store: Tables) -> Resources | None:
    row = resources_row(store, None)
    return None if row is None else _resources_from_row(row)


@read
def get_resources_by_id(store: Tables, resources_id: str, version: int | None) -> Resources:
    check_count("version", version, 1)
    return _resources_from_row(require_resources(store, resources_id, version))


def resources_row(store: Tables, resources_id: str | None, version: int | None = None) -> Row | None:
    """Return the row of a bundle in a version, or the newest; ``None``: of the latest bundle."""
    named = {"resources_id": resources_id, "wanted": version}
    return store.db.one(_LATEST if resources_id is None else _GET, **named)


def require_resources(store: Tables, resources_id: str, version: int | None = None) -> Row:
    row = resources_row(store, resources_id, version)
    if row is None:
        of = "" if version is None else f" in version {version}"
        raise NotFound(f"no resources {resources_id}{of}: add_resources first")
    return row


@read
def query_resources(store: Tables, limit: int, after: str | None) -> list[Resources]:
    check_limit(limit)
    query = _QUERY.limit(limit)
    if after is not None:
        place = store.db.value(_CURSOR, resources_id=after)
        if place is None:
            raise NotFound(f"after: no resources {after}")
        query = query.where(_bundles.c.first < place)
    return [_resources_from_row(row) for row in store.db.all(query)]


def _resources_from_row(row: Row) -> Resources:
    resources_id, version, create_time, data = row
    try:
        resources = codec.unpack(data, dict[str, Resource])
    except msgspec.ValidationError:  # an earlier version took it: what is no resource is shown as it is
        resources = {name: _resource_or_json(held) for name, held in codec.unpack(data).items()}
    return Resources(resources_id=resources_id, version=version, create_time=create_time, resources=resources)


def _resource_or_json(held: Any) -> Resource:
    try:
        return cast(Resource, msgspec.convert(held, Resource))
    except msgspec.ValidationError:
        return JsonResource(value=held)
