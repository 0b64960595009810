"""Attempt-scoped keys: an agent's ``OPENAI_API_KEY`` while it runs.

A key is an HMAC-SHA256 over (run, rollout, attempt, fence, expiry), so it is checked without a database read.
It allows its bearer to call models and to emit for its own attempt, nothing else. When the attempt ends the
key is revoked: later use is refused (HTTP 409) and counted.

Invariants: a key that verifies was minted by the holder of ``secret`` for exactly the claims it carries;
setting the wall clock neither expires the key of a running attempt nor revives that of one that has ended.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import time
from functools import lru_cache

import msgspec

from agentlightning.types import UsageError
from agentlightning.types.base import RequestRefused

PREFIX = "agl-"
CONTEXT_KEY = "agl-context"
"""Placeholder key for clients shared by many rollouts: the instrumented SDK replaces it with the attempt's
key.
"""

ATTEMPT_BYTES = 1 << 30
"""Bytes that an attempt may send to a server by default: a thousand calls with a megabyte of history each."""
MAX_KNOWN = 4_096
"""Verified keys whose claims are kept."""


class WeakSecret(UsageError, ValueError):
    """A secret that can be guessed."""


def check_secret(secret: bytes) -> None:
    """Raise :class:`WeakSecret` for a secret of fewer than 16 bytes."""
    if len(secret) < 16:
        raise WeakSecret(
            f"the key secret has {len(secret)} bytes; give at least 16, e.g. from `openssl rand -hex 32`"
        )


class Claims(msgspec.Struct, array_like=True, frozen=True):
    """The attempt that a key belongs to, and until when."""

    run_id: str
    rollout_id: str
    attempt_id: str
    fence: int
    expires: float


class ByteQuota:
    """How many bytes each attempt may send to one server: what it sends is kept. ``limit``: bytes."""

    MAX_ATTEMPTS = 65_536
    """Attempts that are remembered; the one that came first is forgotten."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sent: dict[str, int] = {}

    def take(self, claims: Claims, n: int) -> None:
        """Count ``n`` bytes of an attempt. Raise :class:`RequestRefused` 413 beyond the limit."""
        sent = self._sent.get(claims.attempt_id, 0) + n
        if sent > self.limit:
            message = f"attempt {claims.attempt_id} has sent {self.limit} bytes here, all that it may send"
            raise RequestRefused(413, "attempt-bytes", message, claims=claims)
        if claims.attempt_id not in self._sent and len(self._sent) >= self.MAX_ATTEMPTS:
            del self._sent[next(iter(self._sent))]
        self._sent[claims.attempt_id] = sent


class Keys:
    """Mints, checks and revokes keys. ``secret``: at least 16 bytes; random by default (keys then end with
    the process).
    """

    def __init__(self, secret: bytes | None = None) -> None:
        if secret is not None:
            check_secret(secret)
        self.shared = secret is not None
        """Whether the secret was given, so that other processes may have it too."""
        self._secret = secret or secrets.token_bytes(32)
        self._offset = time.time() - time.monotonic()
        """Wall clock minus monotonic clock, when this process began."""
        self._claims = lru_cache(MAX_KNOWN)(self._verified)  # each key comes with every call of its attempt
        self._revoked: dict[str, float] = {}
        """Attempt → monotonic time until which it is remembered."""

    @classmethod
    def from_env(cls) -> Keys:
        """Take the secret from ``AGL_SECRET`` (shared by processes of one run), else a random one. An empty
        value is refused: whoever set the variable wanted a secret.
        """
        value = os.environ.get("AGL_SECRET")
        try:
            return cls(None if value is None else value.encode())
        except WeakSecret as error:
            raise WeakSecret(f"AGL_SECRET: {error}") from None

    @property
    def secret(self) -> bytes:
        """What keys are made with, for processes of the same run."""
        return self._secret

    def mint(
        self, rollout_id: str, attempt_id: str, *, run_id: str = "", fence: int = 1, ttl: float = 86_400.0
    ) -> str:
        """Return a key for one attempt, valid ``ttl`` seconds."""
        expires = max(self._wall_clocks()) + ttl
        body = msgspec.msgpack.encode(Claims(run_id, rollout_id, attempt_id, fence, expires))
        return PREFIX + base64.urlsafe_b64encode(self._sign(body) + body).decode().rstrip("=")

    def check(self, key: str, now: float | None = None) -> Claims:
        """Return the claims of a valid key. A key has expired when both clocks of this process say so.

        Raises :class:`RequestRefused`: 401 for an unknown or expired key, 409 when its attempt has ended. The
        refusal of a genuine key holds its claims, so that a late call counts for its attempt.
        """
        claims = self._claims(key)
        if claims.expires < (min(self._wall_clocks()) if now is None else now):
            raise RequestRefused(
                401, "expired-key", f"the key of attempt {claims.attempt_id} has expired", claims=claims
            )
        if claims.attempt_id in self._revoked:
            raise RequestRefused(
                409,
                "attempt-ended",
                f"attempt {claims.attempt_id} has ended; its calls are no longer recorded or answered",
                claims=claims,
            )
        return claims

    def revoke(self, attempt_id: str, *, ttl: float = 86_400.0) -> None:
        """Refuse the attempt's key from now on. Forgotten after ``ttl`` seconds, when the key has expired
        anyway.
        """
        now = time.monotonic()
        self._revoked[attempt_id] = now + ttl
        while self._revoked:
            first, until = next(iter(self._revoked.items()))
            if until > now:
                break
            del self._revoked[first]

    def _wall_clocks(self) -> tuple[float, float]:
        """Return two clocks: the wall clock, which may jump, and the wall clock at the start plus the time
        since, which may have been wrong then. Minting takes the later, checking the earlier: clocks of other
        processes differ.
        """
        return time.time(), self._offset + time.monotonic()

    def _sign(self, body: bytes) -> bytes:
        return hmac.new(self._secret, body, hashlib.sha256).digest()[:16]

    def _verified(self, key: str) -> Claims:
        body = key.removeprefix(PREFIX)
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) if body != key else b""
        except ValueError:
            raw = b""
        if len(raw) <= 16 or not hmac.compare_digest(self._sign(raw[16:]), raw[:16]):
            raise RequestRefused(
                401, "unknown-key", "not a key of this run: use the key the attempt was given"
            )
        return msgspec.msgpack.decode(raw[16:], type=Claims)
