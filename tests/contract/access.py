"""The authorisation matrix of the store's server, made from its table of routes: each route, asked with each
kind of bearer, for the bearer's own attempt and for a foreign one.

A cell is *as declared* if an admitted request succeeds, and a refused one has its status (401, 403, 409),
gets nothing of the store and changes nothing in it. It is a *foreign access* if a refused request got or
changed something, whatever its status.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
from contract.storing import call, span

from agentlightning.keys import Keys
from agentlightning.plugins.manager import load
from agentlightning.store import Store
from agentlightning.types import (
    AttemptedRollout,
    AttemptStatus,
    AuditLink,
    Rollout,
    RolloutConfig,
    StepReport,
    new_id,
)
from agl_audit.store.reward_versions import Rescored, RewardVersion
from agl_cluster.roles import Role, RoleTokens
from agl_cluster.store import traces
from agl_cluster.store.routes import (
    ATTEMPT_KEY,
    ATTEMPT_KEY_ROLE,
    BATCH_ROLE,
    JSON,
    OF_ONE_ROLLOUT,
    PREFIX,
    ROLLOUT_TOKEN,
    ROLLOUT_TOKEN_ROLE,
    STORED_RECORDS,
    TRACES_ROLE,
    all_routes,
    encode,
)

SECRET = b"the secret of the matrix, and of no other"
TOKEN = "the operator's token of the matrix"
MARK = "only-for-the-owner"
"""Stands in everything that the store holds of an attempt."""
TARGETS = ("own", "foreign")


@dataclass(frozen=True)
class Bearer:
    """One kind of bearer. ``role``: what it proves; ``None``: nothing, so that it is refused with
    ``refusal``.
    """

    name: str
    role: Role | None
    make: Callable[[Scene], str | None]
    refusal: int = 401
    one: bool = False
    """Whether it is for one rollout."""
    speaks_otlp: bool = True


@dataclass(frozen=True)
class Scene:
    """Two attempts that run, and a third that has ended; made anew after a cell that may have changed it."""

    store: Store
    keys: Keys
    tokens: RoleTokens
    own: AttemptedRollout
    foreign: AttemptedRollout
    ended: AttemptedRollout

    def key(self, of: AttemptedRollout, **fields: Any) -> str:
        return self.keys.mint(of.rollout.rollout_id, of.attempt.attempt_id, fence=of.attempt.fence, **fields)


def _revoked(scene: Scene) -> str:
    token, claims = scene.tokens.issue(Role.ADMIN)
    scene.tokens.revoked.add(claims.key_id)
    return token


def _of_one(scene: Scene) -> str:
    rollout, worker = scene.own.rollout, scene.own.attempt.worker_id
    return scene.tokens.issue(Role.RUNNER, 60.0, (rollout.rollout_id, worker, rollout.resources_id))[0]


def _ended(scene: Scene) -> str:
    return scene.key(scene.ended)


OTHER = b"another secret, as long as the right one"
BEARERS = (
    Bearer("the operator's token", Role.ADMIN, lambda s: TOKEN),
    *(
        Bearer(f"issued {role}", role, lambda s, r=role: s.tokens.issue(r, 60.0)[0])  # type: ignore[misc]
        for role in (Role.ADMIN, Role.TRAINER, Role.RUNNER)
    ),
    Bearer("derived runner", Role.RUNNER, lambda s: s.tokens.derive(Role.RUNNER)),
    Bearer("runner of one rollout", Role.RUNNER, lambda s: _of_one(s), one=True),
    Bearer("attempt", Role.ATTEMPT, lambda s: s.key(s.own)),
    Bearer("nothing", None, lambda s: None),
    Bearer("a wrong token", None, lambda s: "wrong"),
    Bearer("an expired role", None, lambda s: s.tokens.issue(Role.ADMIN, -1.0)[0]),
    Bearer("a revoked role", None, _revoked),
    Bearer("another secret's admin", None, lambda s: RoleTokens(OTHER).derive(Role.ADMIN)),
    Bearer("another secret's attempt", None, lambda s: Keys(OTHER).mint("ro", "at")),
    Bearer("an expired attempt", None, lambda s: s.key(s.own, ttl=-1.0)),
)


ENDED = Bearer("an ended attempt", None, _ended, 409, speaks_otlp=False)


@dataclass(frozen=True)
class Target:
    """One request: how it is made for an attempt, and the least role."""

    name: str
    least: Role
    send: Callable[[Scene, AttemptedRollout], tuple[str, str, Any]]
    """Method, path and JSON body (a dict for a GET is its query)."""
    inner: bool = False
    """Whether the answer is that of a call within a batch."""


def targets() -> Iterator[Target]:
    """Every route, every method as a call of a batch, and the routes beside the table."""
    for route in all_routes().values():
        yield Target(route.name, route.least, lambda s, of, n=route.name: _direct(n, of))  # type: ignore[misc]
        least = route.least if route.least.covers(BATCH_ROLE) else BATCH_ROLE
        yield Target(
            f"batch: {route.name}",
            least,
            lambda s, of, n=route.name: _in_batch(n, of),  # type: ignore[misc]
            inner=True,
        )
    yield Target(
        "records, stored", all_routes()["records"].least, lambda s, of: ("POST", STORED_RECORDS, [_id(of)])
    )
    yield Target("attempt_key", ATTEMPT_KEY_ROLE, lambda s, of: ("POST", _path(ATTEMPT_KEY, of), {}))
    yield Target(
        "rollout_token",
        ROLLOUT_TOKEN_ROLE,
        lambda s, of: ("POST", _path(ROLLOUT_TOKEN, of), {"worker_id": of.attempt.worker_id}),
    )
    yield Target(traces.PATH, TRACES_ROLE, lambda s, of: ("POST", traces.PATH, _otlp(of)))


_RESERVED = 3
"""The number that is reserved in each attempt of a scene."""


def _id(of: AttemptedRollout) -> str:
    return of.rollout.rollout_id


def _path(path: str, of: AttemptedRollout) -> str:
    places = {
        "rollout_id": _id(of),
        "attempt_id": of.attempt.attempt_id,
        "run_id": of.rollout.run_id,
        "worker_id": of.attempt.worker_id,
        "resources_id": f"resources-{of.rollout.run_id}",
    }
    return path.format_map(places)


def _given(name: str, of: AttemptedRollout) -> dict[str, Any]:
    """The parameters of a method for an attempt: those that it requires, and those that select."""
    run, rollout, attempt = of.rollout.run_id or "", _id(of), of.attempt.attempt_id
    known: dict[str, Any] = {
        "rollout_id": rollout,
        "attempt_id": attempt,
        "run_id": run,
        "worker_id": of.attempt.worker_id,
        "resources_id": f"resources-{run}",
        "rollout_ids": [rollout],
        "attempts": [[rollout, attempt]],
        "span": span(of, span_id="ab" * 8, trace_id="cd" * 16),
        "spans": [span(of)],
        "calls": [call(of, 7)],
        "resources": {"main_prompt": {"kind": "json", "value": MARK}},
        "rollouts": [Rollout(rollout_id="", input=MARK)],
        "input": MARK,
        "info": {"about": MARK},
        "report": StepReport(run_id=run, step=0, policy="policy", policy_version=1),
        "link": AuditLink(run_id=run, number=0, kind="begin", name="begin", head="0" * 64),
        "version": RewardVersion(run_id=run, name="again", function="a:b", digest="0" * 64),
        "rescored": [Rescored(rollout_id=rollout, version="rescored")],
        "grades": [],
        "kind": "refused",
        "reason": MARK,
        "timeout": 0.0,
        "older_than": 0.0,
        "n": 1,
    }
    optional = {
        "update_attempt": {"status": "succeeded"},
        "update_rollout": {"status": "cancelled"},
        "query_rollouts": {"run_id": run},
        "prune": {"older_than": 1e9},
        "counts": {"rollout_id": rollout},
        "count": {"rollout_id": rollout},
        "start_attempt": {"worker_id": of.attempt.worker_id},
    }.get(name, {})
    fields = msgspec.structs.fields(all_routes()[name].parameters)
    required = [f.name for f in fields if f.required]
    if name == "add_numbered_spans":
        known["spans"] = [span(of, sequence_id=_RESERVED)]
    if name == "rescored":
        known["version"] = "rescored"
    if name in ("add_resources", "add_run", "start_rollout", "enqueue_rollout"):  # ids of their own
        known["run_id"], known["rollout_id"] = new_id("run"), new_id("ro")
    scoped = ["timeout"] if name == "wait_for_rollouts" else []
    if name in ("query_spans", "spans", "query_calls"):
        scoped = ["attempt_id"]
    return {n: known[n] for n in (*required, *scoped)} | optional


def _direct(name: str, of: AttemptedRollout) -> tuple[str, str, Any]:
    route = all_routes()[name]
    given = {k: v for k, v in _given(name, of).items() if k not in route.path_parameters}
    return route.verb, _path(route.path, of), given


def _in_batch(name: str, of: AttemptedRollout) -> tuple[str, str, Any]:
    return "POST", f"{PREFIX}/batch", [{"method": name, "params": _given(name, of)}]


def _otlp(of: AttemptedRollout) -> dict[str, Any]:
    owner = {"agl.rollout_id": _id(of), "agl.attempt_id": of.attempt.attempt_id}
    said = [{"key": key, "value": {"stringValue": text}} for key, text in owner.items()]
    one = {"traceId": "ef" * 16, "spanId": "ab" * 8, "name": MARK, "attributes": said}
    times = {"startTimeUnixNano": "1000000000", "endTimeUnixNano": "2000000000"}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{**one, **times}]}]}]}


@dataclass
class Matrix:
    """What was found. ``wrong``: a line for each cell that is not as declared."""

    cells: int = 0
    as_declared: int = 0
    foreign_access: int = 0
    wrong: list[str] = field(default_factory=list)


async def matrix(store: Store, url: str, tokens: RoleTokens, chosen: Sequence[Bearer] = BEARERS) -> Matrix:
    """Ask the server at ``url``, which serves ``store`` under :data:`SECRET` and :data:`TOKEN`."""
    found, keys = Matrix(), Keys(SECRET)
    scene: Scene | None = None
    async with aiohttp.ClientSession(url) as http:
        for target in targets():
            for bearer in (*chosen, ENDED):
                for whose in TARGETS:
                    scene = scene or await make_scene(store, keys, tokens)
                    if await _cell(http, scene, target, bearer, whose, found):
                        scene = None
    return found


async def make_scene(
    store: Store, keys: Keys, tokens: RoleTokens, config: RolloutConfig | None = None
) -> Scene:
    """Make the attempts of a cell, each in a run of its own with resources, a call and a span."""
    leases = []
    for worker in ("own", "foreign", "ended"):
        run = new_id("run")
        await store.add_run(run, {"about": MARK})
        version = RewardVersion(run_id=run, name="rescored", function="a:b", digest="0" * 64)
        await store.add_reward_version(version)
        await store.add_resources({"main_prompt": MARK}, resources_id=f"resources-{run}")
        await store.update_worker(f"worker-{run}", "idle")
        lease = await store.start_rollout(
            {"q": MARK, "of": worker},
            run_id=run,
            worker_id=f"worker-{run}",
            config=config,
            resources_id=f"resources-{run}",
        )
        await store.add_calls([call(lease)])
        await store.add_span(span(lease, MARK))
        if "get_next_span_sequence_id" in load().store_operations:  # of agl-v03
            assert await store.get_next_span_sequence_id(_id(lease), lease.attempt.attempt_id) == _RESERVED
        leases.append(lease)
    ended = leases[2]
    await store.update_attempt(_id(ended), ended.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    return Scene(store, keys, tokens, *leases)


async def _cell(
    http: aiohttp.ClientSession, scene: Scene, target: Target, bearer: Bearer, whose: str, found: Matrix
) -> bool:
    """Ask for one cell, and return whether the scene may have changed."""
    of = scene.own if whose == "own" else scene.foreign
    expected = expected_status(target, bearer, whose)
    token = bearer.make(scene)
    if expected == 200 and target.name.endswith("delete_run"):  # a run at work is not deleted
        await scene.store.update_attempt(_id(of), of.attempt.attempt_id, AttemptStatus.SUCCEEDED)
    before = None if expected == 200 else await held(scene)
    status, text = await ask(http, target, target.send(scene, of), token)
    changed = before is not None and await held(scene) != before
    leaked = MARK in text
    good = status == 200 if expected == 200 else status == expected and not changed and not leaked
    if target.name == traces.PATH and expected == 403 and not bearer.one:  # OTLP refuses span by span
        good = status == 200 and '"rejectedSpans": "1"' in text and not changed
        status = 403 if good else status
    found.cells += 1
    found.as_declared += good
    if expected != 200 and (status == 200 or changed or leaked):
        found.foreign_access += 1
    if not good:
        found.wrong.append(f"{target.name} · {bearer.name} · {whose}: {status}, not {expected}: {text[:150]}")
    return expected == 200 or changed


def expected_status(target: Target, bearer: Bearer, whose: str) -> int:
    if bearer.role is None:
        if bearer.refusal == 409:  # the key itself is good: the role is looked at first, then the attempt
            if target.name == traces.PATH:
                return 403
            return 409 if target.least is Role.ATTEMPT else 403
        return bearer.refusal
    if not bearer.role.covers(target.least):
        return 403
    if bearer.one:
        name = target.name.removeprefix("batch: ")
        return 200 if whose == "own" and name in OF_ONE_ROLLOUT else 403
    return 403 if bearer.role is Role.ATTEMPT and whose == "foreign" else 200


async def ask(
    http: aiohttp.ClientSession, target: Target, request: tuple[str, str, Any], token: str | None
) -> tuple[int, str]:
    """Send a request; return its status, or that of the call within its batch, and the answer's text."""
    verb, path, body = request
    headers = {"Content-Type": JSON} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    given: dict[str, Any] = {"data": encode(body, packed=False)[0]}
    if verb == "GET":
        given = {"params": {k: str(v) for k, v in body.items()}}
    async with http.request(verb, path, headers=headers, **given) as response:
        status, text = response.status, await response.text()
    if target.inner and status == 200:
        error = json.loads(text)[0].get("error")
        status = 200 if error is None else {"Forbidden": 403}.get(error["error"], 500)
    return status, text


async def held(scene: Scene, sums: bool = True) -> Any:
    """Everything a refused request might change, but the counts of refusals; ``sums``: of the whole store."""
    state: list[Any] = []
    for of in (scene.own, scene.foreign, scene.ended):
        run, rollout = of.rollout.run_id or "", _id(of)
        state += [
            await scene.store.query_rollouts(run_id=run),
            await scene.store.query_attempts(rollout),
            await scene.store.query_spans(rollout),
            await scene.store.query_calls(rollout),
            await scene.store.query_steps(run),
            await scene.store.query_links(run),
            await scene.store.get_resources_by_id(f"resources-{run}"),
            await scene.store.get_worker_by_id(f"worker-{run}"),
        ]
    if not sums:
        return state
    counted = await scene.store.statistics()
    kinds = "rollouts", "attempts", "calls", "spans", "workers", "resources", "runs"
    return [*state, [counted[kind] for kind in kinds]]
