"""The published OpenAPI document of the store's server is current."""

from __future__ import annotations

import runpy
from pathlib import Path

from agl_cluster.store.openapi import document
from agl_cluster.store.routes import all_routes

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "openapi.py"))


def test_the_published_document_is_current() -> None:
    assert SCRIPT["FILE"].read_text() == SCRIPT["text"](), "make openapi"


def test_every_route_is_in_it_with_its_role() -> None:
    paths = document()["paths"]
    for route in all_routes().values():
        operation = paths[route.path][route.verb.lower()]
        assert (operation["operationId"], operation["x-least-role"]) == (route.name, route.least.value)
        assert {"200", "400", "401", "403", "503"} <= {*operation["responses"]}


def test_every_operation_and_field_is_named_once() -> None:
    operations = [one for path in document()["paths"].values() for one in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len({*names}) and all(operation["summary"] for operation in operations)
