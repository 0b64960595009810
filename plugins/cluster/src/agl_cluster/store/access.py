"""Who sends a request to the store, and what its role may do.

Three kinds of bearer are known: the operator's token (``AGL_TOKEN``, role ``admin``), the token of a role
(:mod:`agl_cluster.roles`) and the key of an attempt (:mod:`agentlightning.keys`), the last two under
``AGL_SECRET``. A store with neither variable trusts everyone who reaches it.

Invariants: the table of routes alone says which role may use a route; an attempt reaches nothing but itself,
and nothing once it has ended; a runner with a token for one rollout reaches no other; secrets are compared in
constant time.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agentlightning.keys import PREFIX as KEY, Claims, Keys
from agentlightning.store.base import AttemptEnded, Conflict, Store
from agentlightning.types import Attempt, AttemptStatus, Rollout
from agentlightning.types.base import RequestRefused
from agl_cluster.roles import PREFIX as ROLE_TOKEN, Revoked, Role, RoleClaims, RoleTokens, revoked_file
from agl_cluster.store.outcomes import Forbidden
from agl_cluster.store.routes import OF_ONE_ROLLOUT, Route

LATEST: Final = "latest"
_OPEN: Final = frozenset({AttemptStatus.PREPARING, AttemptStatus.RUNNING, AttemptStatus.UNRESPONSIVE})
_BEARER: Final = "Bearer "


@dataclass(frozen=True)
class StoreCaller:
    """The sender of a request. ``claims``: the attempt of a sender that is one; ``one``: the token of a
    runner that has one rollout.
    """

    role: Role
    claims: Claims | None = None
    one: RoleClaims | None = None

    def check(self, what: str, least: Role) -> None:
        """Raise :class:`Forbidden` if the role may not use ``what``."""
        if not self.role.covers(least):
            raise Forbidden(f"{what} needs the role {least.value}; this is a token of role {self.role.value}")
        if self.one is not None and what not in OF_ONE_ROLLOUT:
            raise Forbidden(f"{what}: this is a token for the rollout {self.one.rollout_id} alone")

    def confine_to_rollout(self, parameters: Mapping[str, Any]) -> None:
        """Raise :class:`Forbidden` if a runner that has one rollout names another one, or another runner."""
        if self.one is None:
            return
        spans = [*parameters.get("spans", ()), *parameters.get("returned", ())]
        named = [one.rollout_id for one in [*spans, *filter(None, [parameters.get("span")])]]
        named += [rollout_id for rollout_id, _ in parameters.get("attempts", ())]
        named += [parameters["rollout_id"]] if "rollout_id" in parameters else []
        if any(rollout_id != self.one.rollout_id for rollout_id in named):
            raise Forbidden(f"this is a token for the rollout {self.one.rollout_id}, and for no other")
        for name in ("worker_id", "resources_id"):
            own = getattr(self.one, name)
            if parameters.get(name, own) not in (None, own):
                raise Forbidden(f"this is a token for {name} {own}, and for no other")

    def confine(self, route: Route, parameters: dict[str, Any]) -> None:
        """Check the role, and confine the parameters of an attempt to that attempt, and those of a runner
        that has one rollout to that rollout.
        """
        self.check(route.name, route.least)
        self.confine_to_rollout(parameters)
        if self.claims is None:
            return
        if parameters.get("attempt_id") == LATEST:
            parameters["attempt_id"] = self.claims.attempt_id
        for name in ("rollout_id", "attempt_id"):
            own = getattr(self.claims, name)
            if name in parameters and parameters[name] != own:
                raise Forbidden(f"{route.name}: the key is that of {own}, and reaches no other {name}")


EVERYONE: Final = StoreCaller(Role.ADMIN)


class StoreAccess:
    """Knows the callers of one server. ``token``: the operator's; ``tokens``, ``keys``: made with the run's
    secret.
    """

    def __init__(
        self, token: str | None = None, tokens: RoleTokens | None = None, keys: Keys | None = None
    ) -> None:
        self._token = None if token is None else token.encode()
        self._tokens, self.keys = tokens, keys

    @classmethod
    def from_env(cls, token: str | None = None, store_file: Path | None = None) -> StoreAccess:
        """Return the access by ``token`` and ``AGL_SECRET``; the revoked ids are beside ``store_file``."""
        tokens = RoleTokens.from_env(Revoked(revoked_file(store_file)))
        return cls(token, tokens, Keys.from_env() if "AGL_SECRET" in os.environ else None)

    def rollout_token(self, rollout: Rollout, worker_id: str, ttl: float | None) -> str:
        """Return a token for a runner of one rollout. :class:`Conflict`: there is no secret for it."""
        if self._tokens is None:
            raise Conflict("this store makes no tokens: start it with the run's AGL_SECRET")
        only = (rollout.rollout_id, worker_id, rollout.resources_id)
        return self._tokens.issue(Role.RUNNER, ttl, only)[0]

    @property
    def guarded(self) -> bool:
        """Whether a request must bear a token or a key."""
        return self._token is not None or self._tokens is not None

    def caller(self, authorization: str) -> StoreCaller:
        """Return the sender of a request with this ``Authorization``.

        Raise :class:`RequestRefused`: 401 for a bearer that is missing, unknown, expired or revoked.
        """
        given = authorization.removeprefix(_BEARER)
        if self._token is not None and hmac.compare_digest(given.encode(errors="replace"), self._token):
            return EVERYONE
        if given.startswith(KEY):
            return StoreCaller(Role.ATTEMPT, self._keys_of_attempts().check(given))
        if not self.guarded:
            return EVERYONE
        if given.startswith(ROLE_TOKEN) and self._tokens is not None:
            claims = self._tokens.check(given)
            return StoreCaller(claims.role, one=claims if claims.rollout_id is not None else None)
        raise RequestRefused(401, "bad-token", self._wanted(given))

    def _keys_of_attempts(self) -> Keys:
        if self.keys is None:
            raise RequestRefused(
                401,
                "unknown-key",
                "this store cannot check keys of attempts: start it with the run's AGL_SECRET",
            )
        return self.keys

    def _wanted(self, given: str) -> str:
        """Say what is missing, without quoting what was given."""
        problem = "is wrong" if given else "is missing"
        if given.startswith(ROLE_TOKEN):
            return "the token is that of a role, and this store has no AGL_SECRET to check it with"
        if self._tokens is None:
            return f"the bearer token {problem}: set AGL_TOKEN to the store's"
        return (
            f"the bearer token {problem}: set AGL_SECRET to the store's, or AGL_TOKEN to a token from "
            "`agl token`"
        )


async def check_attempt_open(store: Store, rollout_id: str, attempt_id: str) -> Attempt:
    """Return the attempt. Raise :class:`AttemptEnded` unless it is its rollout's latest and has not ended: a
    key ends with its attempt.
    """
    latest = await store.get_latest_attempt(rollout_id)
    if latest is None or latest.attempt_id != attempt_id or latest.status not in _OPEN:
        raise AttemptEnded(f"{attempt_id} is no attempt of {rollout_id} that runs, so it has no key any more")
    return latest
