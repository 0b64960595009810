"""The OpenAPI 3.1 document of the store's server, made from its table of routes.

Parameters, bodies and results are the schemas of the types in the signatures of
:class:`~agentlightning.store.base.Store`; the descriptions are docstrings. The server shows the document at
``GET /openapi.json``; ``scripts/openapi.py`` writes it to ``docs/store-openapi.json``.
"""

from __future__ import annotations

import inspect
from array import array
from functools import cache
from typing import Any, Final

import msgspec

from agentlightning._version import __version__
from agentlightning.store.calls import StoredRecord
from agentlightning.types.tokens import TokenIds
from agl_cluster.probes import HEALTH, READY
from agl_cluster.roles import Role
from agl_cluster.store.metrics import METRICS, METRICS_ROLE
from agl_cluster.store.outcomes import BatchOutcome, ErrorBody
from agl_cluster.store.routes import (
    ATTEMPT_KEY,
    ATTEMPT_KEY_ROLE,
    BATCH_ROLE,
    BY_NAME,
    JSON,
    NULL,
    PREFIX,
    REQUEST_ID,
    ROLLOUT_TOKEN,
    ROLLOUT_TOKEN_ROLE,
    STORED_RECORDS,
    TRACES_ROLE,
    BatchItem,
    RolloutTokenBody,
    Route,
    all_routes,
)
from agl_cluster.store.traces import PATH as TRACES

PATH: Final = "/openapi.json"
_TEXT: Final = {"text/plain": {"schema": {"type": "string"}}}
_REF: Final = "#/components/schemas/{name}"
_ABOUT: Final = f"""The store of Agent Lightning: work, spans, calls, rewards and resources, durable before
they are acknowledged. Bodies are JSON or MessagePack (`Content-Type`, `Accept: application/msgpack`). In a
query string `{NULL}` stands for null. A change bears `request_id`; sent again under the same id, it is done
once and answered the same. `x-least-role` is the least role that may use a route: attempt < runner < trainer
< admin; an attempt reaches itself only. Without AGL_TOKEN and AGL_SECRET the server asks for no token."""
_ERRORS: Final = {
    400: "A parameter is wrong; the message names its place.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "The token's role may not do this, or not to this attempt.",
    404: "What is named does not exist.",
    409: "It exists with other content, or its state does not allow the change.",
    413: "The body is too large.",
    415: "The body's type or encoding is not one that is read.",
    503: "The store cannot write now, or too many writes are under way (`Retry-After`).",
}


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    routes = all_routes().values()
    kinds = [kind for route in routes for kind in (route.body, route.result_type)]
    every = [*kinds, ErrorBody, RolloutTokenBody, list[BatchItem], list[BatchOutcome], list[StoredRecord]]
    schemas, components = msgspec.json.schema_components(every, schema_hook=_array, ref_template=_REF)
    found = dict(zip(map(str, every), schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        operation = _operation(route, found, components)
        paths.setdefault(route.path, {})[route.verb.lower()] = operation
    paths |= _beside(found)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Agent Lightning store", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(components.items())),
            "responses": {_name(status): _error(status, found) for status in _ERRORS},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "AGL_TOKEN, a token of `agl token`, or the key of an attempt",
                }
            },
        },
    }


def _array(kind: type) -> dict[str, Any]:
    """The schema of our arrays of numbers. JSON has null for NaN."""
    if issubclass(kind, TokenIds) or (issubclass(kind, array) and getattr(kind, "code", "") not in "fd"):
        return {"type": "array", "items": {"type": "integer"}}
    if issubclass(kind, array):
        return {"type": "array", "items": {"type": ["number", "null"]}}
    raise NotImplementedError(f"{kind.__name__} has no schema")


def _operation(route: Route, found: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    body = components[found[str(route.body)]["$ref"].rpartition("/")[2]]
    operation = _described(route.name, route.operation, route.least)
    operation["parameters"] = [_path_parameter(name) for name in route.path_parameters]
    if route.verb == "GET":
        required = body.get("required", ())
        operation["parameters"] += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in body["properties"].items()
        ]
    else:
        content = {JSON: {"schema": found[str(route.body)]}}
        operation["requestBody"] = {"required": bool(body.get("required")), "content": content}
    return operation | {"responses": _responses(found[str(route.result_type)])}


def _described(name: str, method: Any, least: Role) -> dict[str, Any]:
    text = inspect.cleandoc(method.__doc__ or "")
    summary = text.partition("\n\n")[0].replace("\n", " ") or name.replace("_", " ")
    about = {"description": text.replace("``", "`")} if "\n\n" in text else {}
    return {"operationId": name, "summary": summary.replace("``", "`"), **about, "x-least-role": least.value}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _responses(schema: dict[str, Any]) -> dict[str, Any]:
    done = {"description": "Done, and on file.", "content": {JSON: {"schema": schema}}}
    return {"200": done} | {
        str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in _ERRORS
    }


def _name(status: int) -> str:
    return f"error_{status}"


def _error(status: int, found: dict[str, Any]) -> dict[str, Any]:
    return {"description": _ERRORS[status], "content": {JSON: {"schema": found[str(ErrorBody)]}}}


def _beside(found: dict[str, Any]) -> dict[str, Any]:
    """The routes that are not methods of the store."""
    ids = {"rollout_id": "rollout", "attempt_id": "attempt"}
    records = BY_NAME["records"].least
    rollouts = {"type": "array", "items": {"type": "string"}}
    request_id = {"name": REQUEST_ID, "in": "header", "required": False, "schema": {"type": "string"}}
    return {
        f"{PREFIX}/batch": {
            "post": {
                "operationId": "batch",
                "summary": "Do several calls in order, as one write; each has its own result or error.",
                "x-least-role": BATCH_ROLE.value,
                "parameters": [request_id],
                **_body(found[str(list[BatchItem])]),
                "responses": _responses(found[str(list[BatchOutcome])]),
            }
        },
        STORED_RECORDS: {
            "post": {
                "operationId": "stored_records",
                "summary": "Return records in their stored form, in which a call holds only its new parts.",
                "x-least-role": records.value,
                **_body(rollouts),
                "responses": _responses(found[str(list[StoredRecord])]),
            }
        },
        ATTEMPT_KEY: {
            "post": {
                "operationId": "attempt_key",
                "summary": "Return the key of an attempt that runs, for the agent's OPENAI_API_KEY.",
                "x-least-role": ATTEMPT_KEY_ROLE.value,
                "parameters": [_path_parameter(name) for name in ids],
                "responses": _responses({"type": "string"}),
            }
        },
        ROLLOUT_TOKEN: {
            "post": {
                "operationId": "rollout_token",
                "summary": "Return a token for a runner of this rollout alone, as its AGL_TOKEN.",
                "x-least-role": ROLLOUT_TOKEN_ROLE.value,
                "parameters": [_path_parameter("rollout_id")],
                **_body(found[str(RolloutTokenBody)]),
                "responses": _responses({"type": "string"}),
            }
        },
        TRACES: {
            "post": {
                "operationId": "traces",
                "summary": "Store spans of an OpenTelemetry exporter (OTLP over HTTP, JSON or protobuf).",
                "x-least-role": TRACES_ROLE.value,
                **_body({"type": "object"}),
                "responses": _responses({"type": "object"})
                | {
                    str(status): {"description": text, "content": {JSON: {"schema": {"type": "object"}}}}
                    for status, text in _ERRORS.items()
                },
            }
        },
        METRICS: {
            "get": {
                "operationId": "metrics",
                "summary": "Return counts and state in Prometheus' text format.",
                "x-least-role": METRICS_ROLE.value,
                "responses": _responses({}) | {"200": {"description": "The metrics.", "content": _TEXT}},
            }
        },
        **{path: {"get": _probe(*about)} for path, about in _PROBES.items()},
    }


_PROBES: Final = {
    f"{PREFIX}/health": ("health", "Answer while the process lives, with the schema of its file.", False),
    HEALTH: ("healthz", "Answer while the process lives.", False),
    READY: ("readyz", "Answer 200 while the store can take work, else 503 with the reasons.", True),
    PATH: ("openapi", "This document.", False),
}


def _probe(name: str, summary: str, may_fail: bool) -> dict[str, Any]:
    content = {JSON: {"schema": {"type": "object"}}}
    responses = {"200": {"description": "Yes.", "content": content}}
    if may_fail:
        responses["503"] = {"description": "No; `problems` says why.", "content": content}
    return {"operationId": name, "summary": summary, "security": [], "responses": responses}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}
