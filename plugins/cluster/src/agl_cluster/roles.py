"""Roles of the store's clients, and the tokens that prove them.

A role may use what the roles below it may use: ``admin`` > ``trainer`` > ``runner`` > ``attempt``. The
store's table of routes names the least role of each (:mod:`agl_cluster.store.routes`). The key of an
attempt (:mod:`agentlightning.keys`) is the token of the role ``attempt``.

A token is an HMAC-SHA256 over (role, key id, expiry) under a key derived from the run's secret
(``AGL_SECRET``), so it is checked without a database read. Processes that hold the secret derive their own
token; others get one from ``agl token``, and learn nothing from it but what its role may do.

Invariants: a token that verifies was made by a holder of the secret for exactly that role; a token of one
role never passes for a key of an attempt, or the reverse; no message quotes a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from agentlightning.keys import check_secret
from agentlightning.types import UsageError
from agentlightning.types.base import RequestRefused

PREFIX: Final = "aglr-"
DERIVED: Final = "derived"
"""Key id of the tokens that holders of the secret derive. They do not expire."""
REVOKED_VARIABLE: Final = "AGL_REVOKED"
_PURPOSE: Final = b"agentlightning role token 1"
_MAX_KNOWN: Final = 1_024
_EVERY: Final = (None, None, None)


class Role(StrEnum):
    """What a client may do, from least to most."""

    ATTEMPT = "attempt"
    RUNNER = "runner"
    TRAINER = "trainer"
    ADMIN = "admin"

    def covers(self, least: Role) -> bool:
        """Return whether this role may use what ``least`` may use."""
        return _RANK[self] >= _RANK[least]


_RANK: Final = {role: rank for rank, role in enumerate(Role)}
ISSUED: Final = (Role.RUNNER, Role.TRAINER, Role.ADMIN)
"""Roles that have tokens of their own; attempts have keys."""


class RoleClaims(msgspec.Struct, array_like=True, frozen=True):
    """What a token says: its role, the id by which it is revoked, and until when it is valid."""

    role: Role
    key_id: str
    expires: float | None = None
    """Seconds since the epoch."""
    rollout_id: str | None = None
    """The only rollout that a runner with this token reaches; ``None``: every one."""
    worker_id: str | None = None
    """Name of the runner that has it, if it has one rollout."""
    resources_id: str | None = None
    """The resources of that rollout."""


class Revoked:
    """Key ids that are refused: the lines of a file, which is read again when it changes. Empty lines and
    lines that begin with ``#`` are comments. Without a file, nothing is revoked.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._seen: tuple[int, int] | None = None
        self._ids: frozenset[str] = frozenset()

    def __contains__(self, key_id: str) -> bool:
        if self.path is None:
            return False
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        seen = (found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            lines = (line.strip() for line in self.path.read_text(encoding="utf-8").splitlines())
            self._ids = frozenset(line.split()[0] for line in lines if line and not line.startswith("#"))
            self._seen = seen
        return key_id in self._ids

    def add(self, key_id: str) -> None:
        """Refuse a key id from now on, in every process that reads the file."""
        if self.path is None:
            raise UsageError(f"which file holds the revoked ids? Set {REVOKED_VARIABLE} to its path")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{key_id}\n")


class RoleTokens:
    """Makes and checks tokens under a secret of at least 16 bytes."""

    def __init__(self, secret: bytes, revoked: Revoked | None = None) -> None:
        check_secret(secret)
        self.revoked = revoked or Revoked()
        self._key = hmac.new(secret, _PURPOSE, hashlib.sha256).digest()
        self._claims = lru_cache(_MAX_KNOWN)(self._verified)  # each token comes with every request

    @classmethod
    def from_env(cls, revoked: Revoked | None = None) -> RoleTokens | None:
        """Return the tokens under ``AGL_SECRET``; ``None`` where it is not set."""
        value = os.environ.get("AGL_SECRET")
        return None if value is None else cls(value.encode(), revoked)

    def derive(self, role: Role) -> str:
        """Return the token of a process that holds the secret: the same each time, without an expiry."""
        return self._signed(RoleClaims(role, DERIVED))

    def issue(
        self, role: Role, ttl: float | None = None, only: tuple[str | None, str | None, str | None] = _EVERY
    ) -> tuple[str, RoleClaims]:
        """Return a new token, valid ``ttl`` seconds (``None``: until it is revoked), and its claims.
        ``only``: rollout, runner and resources of the token of a runner for one rollout.
        """
        if role not in ISSUED:
            raise UsageError(f"role {role.value!r} has no tokens: the runner makes the keys of attempts")
        expires = None if ttl is None else time.time() + ttl
        claims = RoleClaims(role, secrets.token_hex(6), expires, *only)
        return self._signed(claims), claims

    def check(self, token: str) -> RoleClaims:
        """Return the claims of a valid token. :class:`RequestRefused` (401) says why one is not valid."""
        claims = self._claims(token)
        if claims.expires is not None and claims.expires < time.time():
            raise RequestRefused(
                401,
                "expired-token",
                f"the token {claims.key_id} (role {claims.role}) has expired: get a new one from "
                f"`agl token --role {claims.role}`",
            )
        if claims.key_id in self.revoked:
            raise RequestRefused(
                401,
                "revoked-token",
                f"the token {claims.key_id} (role {claims.role}) is revoked: ask the store's operator for "
                "another",
            )
        return claims

    def _signed(self, claims: RoleClaims) -> str:
        body = msgspec.msgpack.encode(claims)
        return PREFIX + base64.urlsafe_b64encode(self._sign(body) + body).decode().rstrip("=")

    def _sign(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()

    def _verified(self, token: str) -> RoleClaims:
        try:
            body = token.removeprefix(PREFIX)
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) if body != token else b""
        except ValueError:
            raw = b""
        if len(raw) <= 32 or not hmac.compare_digest(self._sign(raw[32:]), raw[:32]):
            raise RequestRefused(
                401,
                "unknown-token",
                "the token was not made with this store's AGL_SECRET: get one from `agl token`",
            )
        return msgspec.msgpack.decode(raw[32:], type=RoleClaims)


def derived_token(role: Role) -> str | None:
    """Return the token of this process for ``role``, derived from ``AGL_SECRET``; ``None`` where it is not
    set.
    """
    tokens = RoleTokens.from_env()
    return None if tokens is None else tokens.derive(role)


def revoked_file(store_file: Path | None) -> Path | None:
    """Return the file of revoked ids: ``AGL_REVOKED``, else ``<store file>.revoked``, else ``None``."""
    given = os.environ.get(REVOKED_VARIABLE)
    if given:
        return Path(given).expanduser()
    return None if store_file is None else store_file.with_name(store_file.name + ".revoked")
