"""The store's interface over HTTP: one table of routes for server and client.

Types of parameters and results come from the signatures of :class:`~agentlightning.store.base.Store`. Bodies
are JSON or MessagePack (``Content-Type``, ``Accept``); our client sends MessagePack, which is lossless for
NaN and bytes.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from agentlightning.plugins.manager import Plugins, load
from agentlightning.store import codec
from agentlightning.store.base import Store
from agentlightning.types.arrays import from_either, to_bytes, to_list
from agl_cluster.roles import Role
from agl_cluster.store.outcomes import ErrorBody

PREFIX: Final = "/v1/agl"
LONGEST_WAIT: Final = 30.0
"""Seconds that the server holds a waiting request; then the client asks again."""
BODY_LIMIT: Final = 256 << 20
"""Bytes of one request."""
NULL: Final = "null"
"""``None``, in a query string."""
JSON: Final = "application/json"
PACKED: Final = "application/msgpack"
REQUEST_ID: Final = "Idempotency-Key"
"""The header that holds the request id of a batch."""

ROUTES: Final[tuple[tuple[str, str, str, Role], ...]] = (
    ("POST", "/rollouts", "enqueue_rollout", Role.TRAINER),
    ("POST", "/rollouts/many", "enqueue_many_rollouts", Role.TRAINER),
    ("POST", "/rollouts/start", "start_rollout", Role.RUNNER),
    ("POST", "/rollouts/wait", "wait_for_rollouts", Role.TRAINER),
    ("POST", "/rollouts/search", "query_rollouts", Role.TRAINER),
    ("POST", "/rollouts/requeue", "requeue_rollouts", Role.TRAINER),
    ("GET", "/rollouts/{rollout_id}", "get_rollout_by_id", Role.ATTEMPT),
    ("PATCH", "/rollouts/{rollout_id}", "update_rollout", Role.TRAINER),
    ("POST", "/queue/dequeue", "dequeue_rollout", Role.RUNNER),
    ("POST", "/queue/dequeue/many", "dequeue_many_rollouts", Role.RUNNER),
    ("POST", "/rollouts/{rollout_id}/attempts", "start_attempt", Role.RUNNER),
    ("GET", "/rollouts/{rollout_id}/attempts", "query_attempts", Role.RUNNER),
    ("GET", "/rollouts/{rollout_id}/attempts/latest", "get_latest_attempt", Role.RUNNER),
    ("PATCH", "/rollouts/{rollout_id}/attempts/{attempt_id}", "update_attempt", Role.RUNNER),
    ("POST", "/records", "records", Role.TRAINER),
    ("POST", "/spans", "add_span", Role.RUNNER),
    ("POST", "/spans/many", "add_many_spans", Role.RUNNER),
    ("GET", "/rollouts/{rollout_id}/spans/stored", "spans", Role.ATTEMPT),
    ("POST", "/calls", "add_calls", Role.RUNNER),
    ("GET", "/rollouts/{rollout_id}/calls", "query_calls", Role.ATTEMPT),
    ("POST", "/resources", "add_resources", Role.TRAINER),
    ("GET", "/resources", "query_resources", Role.RUNNER),
    ("GET", "/resources/latest", "get_latest_resources", Role.RUNNER),
    ("GET", "/resources/{resources_id}", "get_resources_by_id", Role.RUNNER),
    ("PUT", "/resources/{resources_id}", "update_resources", Role.TRAINER),
    ("POST", "/runs", "add_run", Role.TRAINER),
    ("GET", "/runs", "query_runs", Role.TRAINER),
    ("PATCH", "/runs/{run_id}", "update_run", Role.TRAINER),
    ("POST", "/steps", "add_step", Role.TRAINER),
    ("GET", "/runs/{run_id}/steps", "query_steps", Role.TRAINER),
    ("POST", "/links", "add_link", Role.TRAINER),
    ("GET", "/runs/{run_id}/links", "query_links", Role.TRAINER),
    ("POST", "/counts", "count", Role.RUNNER),
    ("GET", "/counts", "counts", Role.TRAINER),
    ("POST", "/workers/{worker_id}/heartbeat", "heartbeat", Role.RUNNER),
)
"""(HTTP method, path, store method, least role). ``Role.ATTEMPT``: the key of an attempt reaches its own."""

STORED_RECORDS: Final = f"{PREFIX}/records/stored"
"""The route of records in their stored form, for our client: a call holds only its new parts."""

ATTEMPT_KEY: Final = f"{PREFIX}/rollouts/{{rollout_id}}/attempts/{{attempt_id}}/key"
"""The route by which a runner without the secret gets the key of an attempt that it runs."""

ATTEMPT_KEY_ROLE: Final = Role.RUNNER
ROLLOUT_TOKEN: Final = f"{PREFIX}/rollouts/{{rollout_id}}/token"
"""The route by which a trainer without the secret gets a token for a runner of that rollout alone."""
ROLLOUT_TOKEN_ROLE: Final = Role.TRAINER
OF_ONE_ROLLOUT: Final = frozenset({
    "start_attempt", "get_rollout_by_id", "query_attempts", "get_latest_attempt", "update_attempt",
    "add_span", "add_many_spans", "spans", "query_calls", "get_resources_by_id", "count", "heartbeat",
    "attempt_key", "batch", "query_spans", "update_worker", "get_worker_by_id",
    "get_next_span_sequence_id", "get_many_span_sequence_ids", "add_numbered_spans",
})  # fmt: skip
"""The routes of a runner that has a token for one rollout, for that rollout; those of plugins last."""
BATCH_ROLE: Final = Role.RUNNER
"""Least role of a batch; each of its calls needs the role of its own route."""
TRACES_ROLE: Final = Role.ATTEMPT

WAITING: Final = frozenset({"dequeue_rollout", "dequeue_many_rollouts", "wait_for_rollouts"})
"""Methods that may wait for other requests."""

_UNDECODED: Final = {"resources": dict[str, Any]}
"""Parameters that the store decodes itself: a resource is an object, a string or a dict."""


class Route(NamedTuple):
    """One method of the store over HTTP."""

    verb: str
    path: str
    operation: Callable[..., Any]
    """The method of :class:`Store`, or the function of a plugin."""
    parameters: type[msgspec.Struct]
    body: type[msgspec.Struct]
    """The parameters that are not in the path."""
    result_type: Any
    path_parameters: tuple[str, ...]
    mutates: bool
    least: Role
    """The least role that may use it. An attempt may use it for itself only."""

    @property
    def name(self) -> str:
        """The name of its operation."""
        return self.operation.__name__


class BatchItem(msgspec.Struct):
    """One call of a batch."""

    method: str
    params: dict[str, Any] = {}


class RolloutTokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a token for one rollout is asked for with: the runner's name, and seconds of validity."""

    worker_id: str
    ttl: float | None = None


def _route(verb: str, path: str, operation: Callable[..., Any], least: Role) -> Route:
    name, hints = operation.__name__, typing.get_type_hints(operation) | _UNDECODED
    signature = inspect.signature(operation)
    fields: list[Any] = []
    for parameter in list(signature.parameters.values())[1:]:
        default = [] if parameter.default is parameter.empty else [parameter.default]
        fields.append((parameter.name, hints[parameter.name], *default))
    in_path = tuple(part[1:-1] for part in path.split("/") if part.startswith("{"))
    whole, body = (
        msgspec.defstruct(f"{name}_parameters", kept, kw_only=True, forbid_unknown_fields=True)
        for kept in (fields, [field for field in fields if field[0] not in in_path])
    )
    mutates = "request_id" in signature.parameters
    return Route(verb, PREFIX + path, operation, whole, body, hints["return"], in_path, mutates, least)


TABLE: Final = tuple(_route(verb, path, getattr(Store, name), least) for verb, path, name, least in ROUTES)
BY_NAME: Final = {route.name: route for route in TABLE}


@lru_cache(maxsize=1)
def added(plugins: Plugins) -> dict[str, Route]:
    """Return the routes of operations that plugins add, by name."""
    specs = [one for one in plugins.store_operations.values() if one.path]
    return {one.name: _route(one.verb, one.path, one.operation(), Role(one.least)) for one in specs}


def all_routes() -> dict[str, Route]:
    """Return the routes of :class:`Store` and of the operations that installed plugins add, by name."""
    return BY_NAME | added(load())


def encode(value: Any, packed: bool) -> tuple[bytes, str]:
    """Return a body and its content type. Values that msgspec refuses, such as big integers and lone
    surrogates, are encoded by the standard library as JSON.
    """
    try:
        return (_pack(value), PACKED) if packed else (_json(value), JSON)
    except (OverflowError, UnicodeEncodeError):
        return codec.as_json(value), JSON


_pack = msgspec.msgpack.Encoder(enc_hook=to_bytes).encode
_json = msgspec.json.Encoder(enc_hook=to_list).encode


def decode(body: bytes, content_type: str, kind: Any) -> Any:
    """Decode a body; ``msgspec.ValidationError`` names the field that is wrong."""
    if content_type == PACKED:
        return _unpacker(kind)(body)
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=from_either)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            found = json.loads(body)  # takes NaN, big integers and lone surrogates
        except ValueError as error:
            raise msgspec.DecodeError(f"the body is not JSON: {error}") from None
        return msgspec.convert(found, kind, dec_hook=from_either)


@cache
def _unpacker(kind: Any) -> Callable[[bytes], Any]:
    return msgspec.msgpack.Decoder(kind, ext_hook=_no_extension, dec_hook=from_either).decode


def _no_extension(code: int, _: memoryview) -> Any:
    raise ValueError(f"the body has an extension of MessagePack (type {code}): send what JSON can say")


STATUSES: Final = {
    "AttemptEnded": 409,
    "Conflict": 409,
    "NotFound": 404,
    "Unauthorized": 401,
    "Forbidden": 403,
    "Busy": 503,
    "StoreError": 503,
    "InternalError": 500,
}
"""Name of an error → HTTP status; that of any other is 400."""


def status_of(found: ErrorBody) -> int:
    """Return the HTTP status of an error."""
    return STATUSES.get(found.error, 400)
