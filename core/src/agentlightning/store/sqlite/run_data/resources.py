"""Resources: named, versioned bundles given to agents.

Invariant: a version is never changed; an update adds the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from sqlalchemy import and_, func, select

from agentlightning.store import codec
from agentlightning.store.base import NotFound
from agentlightning.store.bounds import check_count
from agentlightning.store.pages import check_limit
from agentlightning.store.sqlite.core import StoreCore
from agentlightning.store.sqlite.file import schema
from agentlightning.store.sqlite.file.statements import compile_sql, given, insert_sql
from agentlightning.types import LLM, JsonResource, PromptTemplate, Resource, Resources, new_id

_t = schema.resources
_COLUMNS = (_t.c.resources_id, _t.c.version, _t.c.create_time, _t.c.data)
_INSERT = insert_sql(_t)
_VERSION = compile_sql(select(func.max(_t.c.version)).where(given(_t.c.resources_id)))
_LATEST = compile_sql(select(*_COLUMNS).order_by(_t.c.seq.desc()).limit(1))
_GET = compile_sql(select(*_COLUMNS).where(given(_t.c.resources_id)).order_by(_t.c.version.desc()).limit(1))
_GET_VERSION = compile_sql(select(*_COLUMNS).where(given(_t.c.resources_id, _t.c.version)))
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
_CURSOR = compile_sql(select(func.min(_t.c.seq)).where(given(_id)))


def to_resource(name: str, value: Resource | str | dict[str, Any]) -> Resource:
    """The resource of an object, a string (prompt template) or a dict (by ``resource_type``, else JSON)."""
    if isinstance(value, (LLM, PromptTemplate, JsonResource)):
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


class ResourceStore(StoreCore):
    """Bundles for agents."""

    async def add_resources(
        self, resources: dict[str, Resource | str | dict[str, Any]], *, request_id: str | None = None
    ) -> Resources:
        """Add a bundle, version 1. It becomes the latest."""
        made = {name: to_resource(name, value) for name, value in resources.items()}
        return await self._write(
            "add_resources", lambda: self._add(new_id("rs"), 1, made), request_id, Resources
        )

    async def update_resources(
        self,
        resources_id: str,
        resources: dict[str, Resource | str | dict[str, Any]],
        *,
        request_id: str | None = None,
    ) -> Resources:
        """Add the next version of a bundle. It replaces all of the content and becomes the latest."""
        made = {name: to_resource(name, value) for name, value in resources.items()}

        def work() -> Resources:
            row = self.db.one(_VERSION, resources_id=resources_id)
            if row is None or row[0] is None:
                raise NotFound(f"no resources {resources_id}")
            return self._add(resources_id, row[0] + 1, made)

        return await self._write("update_resources", work, request_id, Resources)

    def _add(self, resources_id: str, version: int, made: dict[str, Resource]) -> Resources:
        bundle = Resources(
            resources_id=resources_id, resources=made, version=version, create_time=self.clock()
        )
        self.db.execute(
            _INSERT,
            resources_id=resources_id,
            version=version,
            create_time=bundle.create_time,
            data=codec.pack(made),
        )
        return bundle

    async def get_latest_resources(self) -> Resources | None:
        """The bundle that was added or updated last."""
        row = await self.writer.read(lambda: self.db.one(_LATEST))
        return None if row is None else _resources_of(row)

    async def get_resources_by_id(self, resources_id: str, version: int | None = None) -> Resources:
        """A bundle in this version, or the newest."""
        check_count("version", version, 1)

        def work() -> tuple[Any, ...] | None:
            if version is None:
                return self.db.one(_GET, resources_id=resources_id)
            return self.db.one(_GET_VERSION, resources_id=resources_id, version=version)

        row = await self.writer.read(work)
        if row is None:
            of = "" if version is None else f" in version {version}"
            raise NotFound(f"no resources {resources_id}{of}")
        return _resources_of(row)

    async def query_resources(self, limit: int = 100, *, after: str | None = None) -> list[Resources]:
        """The newest version of each bundle, the bundle added last first. ``after``: the last id of the page
        before.
        """
        check_limit(limit)

        def work() -> list[tuple[Any, ...]]:
            if after is None:
                return self.db.all(compile_sql(_QUERY.limit(limit)))
            place = self.db.one(_CURSOR, resources_id=after)
            if place is None or place[0] is None:
                raise NotFound(f"after: no resources {after}")
            return self.db.all(compile_sql(_QUERY.where(_bundles.c.first < place[0]).limit(limit)))

        return [_resources_of(row) for row in await self.writer.read(work)]


def _resources_of(row: Sequence[Any]) -> Resources:
    return Resources(
        resources_id=row[0],
        version=row[1],
        create_time=row[2],
        resources=codec.unpack(row[3], dict[str, Resource]),
    )
